# Needs python3 (3.11 or later) with venv and pip, and make. Everything else is installed into
# .venv, at the versions and hashes pinned in requirements/, by the first target that needs it.

PYTHON ?= python3
# That share the tests; 0: none but pytest's own. Thrice as many as two cores need: many tests wait.
PROCESSES ?= 6
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Tests and examples start many processes: each would compile the sources anew.
unexport PYTHONDONTWRITEBYTECODE

# uv writes all files: server.txt and image.txt are parts of dev.txt, at the same versions.
LOCK := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --no-annotate

# Of PySpark, besides the newest in .venv: each in a folder before the rest of .venv, for the basics alone.
# Workers start anew there, as they do for users; `make test` has them forked.
SPARKS := 4.1 4.2
SPARK_BASICS := tests/spark/test_read.py tests/spark/test_write.py tests/spark/test_stream_reader.py tests/spark/test_stream.py
# Spark 4.1 leaves sockets open.
SPARK_WARNINGS := -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning

# Arrow's driver of JDBC, of 45 MB, by its version and SHA-256: its test is skipped without it.
JDBC := 18.3.0
JDBC_SHA256 := 3f418b46c880e263558c5de669bdbede2c5d4375527ced116fb29f795b03704c
JDBC_JAR := $(VENV)/flight-sql-jdbc-driver.jar

# A server of Azure's blobs and queues, of 370 MB, for Node of .venv: tests are skipped without it.
AZURITE := 3.37.0

# A client of Kafka in JavaScript: its test is skipped without it.
KAFKAJS := 2.2.4

.DEFAULT_GOAL := help
.PHONY: help demo cluster test worlds fast soak jdbc iceberg-rest kafka-java kafka-javascript kafka-go kafka-librdkafka kafka-spark azurite $(SPARKS:%=spark-%) check bench docs dist protocol lock clean
.DELETE_ON_ERROR:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.server ## the main job end to end: a server, a million rows, a long poll
	$(BIN)/python examples/demo.py

cluster: $(VENV)/.dev ## S3, PostgreSQL and three nodes, until Ctrl-C
	$(BIN)/python examples/cluster

test: $(VENV)/.dev $(VENV)/spark.jsa ## all tests but the soak tests; AREA=share: those of one area
	files=$$($(if $(AREA),$(BIN)/python tests/areas.py $(AREA),echo --ignore=tests/world)) && \
		$(BIN)/python -m pytest -m "not soak" --numprocesses $(PROCESSES) --no-loadscope-reorder $$files
	$(if $(AREA),,$(MAKE) worlds)

worlds: $(VENV)/.dev ## the simulated worlds of `make test`: by themselves, as they take all cores
	$(BIN)/python -m pytest -m "not soak" tests/world

fast: $(VENV)/.dev ## the unit tests that start no programs: at each change, in under 90 seconds
	$(BIN)/python -m pytest tests/unit -m "not soak and not spark and not postgres and not programs" --numprocesses 3 --no-loadscope-reorder

soak: $(VENV)/.dev $(SPARKS:%=spark-%) ## the tests that run for minutes, properties over many examples, every Spark
	WORKERS_LAUNCH= $(BIN)/python -m pytest $(SPARK_BASICS) -m "not soak"
	$(BIN)/python -m pytest -m "soak or hypothesis" --hypothesis-profile thorough

$(SPARKS:%=spark-%): spark-%: $(VENV)/spark-%/.installed
	WORKERS_LAUNCH= PYTHONPATH=$(CURDIR)/$(VENV)/$@ $(BIN)/python -m pytest $(SPARK_BASICS) -m "not soak" $(SPARK_WARNINGS)

jdbc: $(VENV)/.dev $(JDBC_JAR) ## the test of SQL by JDBC, which needs a JDK of 11 or later and Maven
	$(BIN)/python -m pytest tests/integration/test_jdbc.py

$(JDBC_JAR): | $(BIN)/python
	mvn --quiet --batch-mode dependency:copy -Dartifact=org.apache.arrow:flight-sql-jdbc-driver:$(JDBC) \
		-Dmdep.stripVersion=true -DoutputDirectory=$(abspath $@.part)
	echo "$(JDBC_SHA256)  $@.part/$(@F)" | sha256sum --check --quiet
	mv $@.part/$(@F) $@ && rmdir $@.part

iceberg-rest: $(VENV)/.dev $(VENV)/iceberg-rest ## the test of tables in a REST catalog, which needs a JDK of 11 or later and Maven
	$(BIN)/python -m pytest tests/integration/test_tables_rest.py

$(VENV)/iceberg-rest: tests/integration/iceberg_rest/pom.xml | $(BIN)/python
	mvn --quiet --batch-mode --file $< dependency:copy-dependencies -DoutputDirectory=$(abspath $@.part)
	rm -rf $@ && mv $@.part $@

kafka-java: $(VENV)/.dev $(VENV)/kafka-java ## the tests of Kafka's own programs, which need a JDK of 17 or later and Maven
	$(BIN)/python -m pytest tests/integration/test_kafka_java.py tests/integration/test_kafka_java_copies.py

$(VENV)/kafka-java: tests/integration/kafka_java/pom.xml | $(BIN)/python
	mvn --quiet --batch-mode --file $< dependency:copy-dependencies -DoutputDirectory=$(abspath $@.part)
	rm -rf $@ && mv $@.part $@

kafka-javascript: $(VENV)/.dev $(VENV)/kafka-javascript ## the test of KafkaJS, for which Node and npm have to be there
	$(BIN)/python -m pytest tests/integration/test_kafka_javascript.py

$(VENV)/kafka-javascript: | $(BIN)/python
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $@.part kafkajs@$(KAFKAJS)
	rm -rf $@ && mv $@.part $@

kafka-go: $(VENV)/.dev $(VENV)/kafka-go ## the own tests of two clients in Go against a server, for which Go has to be there
	$(BIN)/python -m pytest tests/integration/test_kafka_go.py

$(VENV)/kafka-go: tests/integration/kafka_go/go.mod | $(BIN)/python
	cd $(<D) && go test -c -o $(abspath $@.part)/kgo.test github.com/twmb/franz-go/pkg/kgo
	cd $(<D) && go test -c -o $(abspath $@.part)/segmentio.test github.com/segmentio/kafka-go
	cp -r --no-preserve=mode $$(cd $(<D) && go list -m -f '{{.Dir}}' github.com/segmentio/kafka-go)/fixtures $@.part/
	rm -rf $@ && mv $@.part $@

kafka-librdkafka: $(VENV)/.dev $(VENV)/kafka-librdkafka ## librdkafka's own tests against a server: LIBRDKAFKA=its sources, and a compiler of C++
	$(BIN)/python -m pytest tests/integration/test_kafka_librdkafka.py

# A copy, in which all is built; its tests find their files where they are run.
$(VENV)/kafka-librdkafka: | $(BIN)/python
	rm -rf $@.part && cp -r $(or $(LIBRDKAFKA),$(error LIBRDKAFKA=a checkout of librdkafka is missing)) $@.part
	cd $@.part && ./configure --disable-gssapi --disable-curl --disable-lz4-ext > /dev/null
	$(MAKE) -C $@.part libs > /dev/null
	$(MAKE) -C $@.part/tests test-runner > /dev/null
	mv $@.part $@

kafka-spark: $(VENV)/.dev $(VENV)/kafka-spark ## the test of Spark's own source and sink of Kafka, which needs a JDK of 17 or later and Maven
	$(BIN)/python -m pytest tests/integration/test_kafka_spark.py

# What PySpark has not itself.
$(VENV)/kafka-spark: tests/integration/kafka_spark/pom.xml | $(BIN)/python
	mvn --quiet --batch-mode --file $< dependency:copy-dependencies -DoutputDirectory=$(abspath $@.part) \
		-DincludeArtifactIds=spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2
	rm -rf $@ && mv $@.part $@

azurite: $(VENV)/.dev $(VENV)/azurite ## the tests of Azure's queues and blobs, for which npm has to be there
	$(BIN)/python -m pytest tests/unit/queue/test_queue_behaviour.py tests/integration/ingest/test_ingest_clouds.py -k azure

$(VENV)/azurite: | $(BIN)/python
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $@.part azurite@$(AZURITE)
	rm -rf $@ && mv $@.part $@

check: $(VENV)/.dev ## lint, formatting, words and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python tools/words.py
	$(BIN)/basedpyright

bench: $(VENV)/.dev ## measure against the baselines, print a table and write JSON
	$(BIN)/python -m benchmarks

docs: $(VENV)/.dev $(VENV)/.docs ## build the documentation into site/, its reference out of the code, its links checked
	$(BIN)/python -m mkdocs build --strict --clean

dist: $(VENV)/.dev ## build the wheel and the sdist, and try them in clean environments of each Python
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python release/try_packages.py dist

protocol: $(VENV)/.dev ## generate the messages of gRPC and of Flight SQL
	cd core && $(CURDIR)/$(BIN)/python -m grpc_tools.protoc \
		--proto_path=. --python_out=. --pyi_out=. wings_core/protocol/*/*.proto

lock: $(VENV)/.dev ## pin the newest versions of everything in requirements/
	$(LOCK) pyproject.toml --extra server --extra objects --extra postgres --extra spark --extra sqs --extra azure --extra pubsub --extra iceberg --extra otel --extra kafka --group dev --output-file requirements/dev.txt
	$(LOCK) pyproject.toml --extra server --group build --constraints requirements/dev.txt \
		--output-file requirements/server.txt
	$(LOCK) pyproject.toml --extra server --extra objects --extra postgres --extra otel --extra kafka --group build \
		--constraints requirements/dev.txt --output-file requirements/image.txt

	$(LOCK) --group docs --constraints requirements/dev.txt --output-file requirements/docs.txt

	@for version in $(SPARKS); do echo "pyspark==$$version.*" | \
		$(LOCK) - --output-file requirements/spark-$$version.txt || exit 1; done

clean: ## remove the environment and everything that was generated
	rm -rf $(VENV) build dist site .coverage .coverage.* .hypothesis .pytest_cache .ruff_cache
	find core flight_server clients spark_connector tests benchmarks examples \
		-name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Wings needs Python 3.11 or later; name one with: make PYTHON=/path/to/python3" >&2; \
		exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "python3 -m venv failed; on Debian and Ubuntu: apt install python3-venv" >&2; \
		exit 1; }

# The build backend is pinned among the requirements, so the project itself is installed without
# downloading anything. The stamps are older than what they depend on when that has changed.
$(VENV)/.%: requirements/%.txt pyproject.toml | $(BIN)/python
	@echo "installing the packages of $< into $(VENV); the first time this takes minutes"
	@$(PIP) install --quiet --require-hashes --requirement $<
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Java of the tests maps Spark's classes from it; without one they take longer, and are the same.
$(VENV)/spark.jsa: $(VENV)/.dev tests/spark/archive_classes.py
	-$(BIN)/python -W ignore tests/spark/archive_classes.py $@ 2> /dev/null

# PySpark comes as sources alone, whose wheel .venv's own tools build.
$(VENV)/spark-%/.installed: requirements/spark-%.txt | $(VENV)/.dev
	rm -rf $(@D)
	$(PIP) install --quiet --require-hashes --no-build-isolation --no-compile --target $(@D) --requirement $<
	@touch $@
