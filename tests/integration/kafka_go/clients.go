// Package clients names the clients of Kafka whose own tests run against the server.
package clients

import (
	_ "github.com/segmentio/kafka-go"
	_ "github.com/twmb/franz-go/pkg/kgo"
)
