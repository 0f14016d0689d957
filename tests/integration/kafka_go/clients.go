// Package clients names the client of Kafka whose own tests run against the server.
package clients

import _ "github.com/twmb/franz-go/pkg/kgo"
