// KafkaJS, unmodified: produces, consumes in a group, and reads, processes and writes in
// transactions. Arguments: the broker's address, a topic to read and one to write. Prints what it
// found as one line of JSON.
const { CompressionTypes, Kafka, logLevel } = require("kafkajs")

const [broker, source, target] = process.argv.slice(2)
const kafka = new Kafka({ brokers: [broker], logLevel: logLevel.NOTHING })
const RECORDS = 300

async function create() {
  const admin = kafka.admin()
  await admin.connect()
  const topics = [source, target].map((topic) => ({ topic, numPartitions: 3 }))
  await admin.createTopics({ topics, waitForLeaders: true })
  await admin.disconnect()
}

async function produce() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const messages = [...Array(RECORDS).keys()].map((number) => ({
    key: `key-${number % 7}`,
    value: `${number}`,
    headers: { half: number % 2 ? "odd" : "even" },
  }))
  await producer.send({ topic: source, messages, compression: CompressionTypes.GZIP })
  await producer.disconnect()
}

// Reads what is committed until so many records have come; `take` is called for each.
async function read(groupId, topic, count, take) {
  const consumer = kafka.consumer({ groupId, readUncommitted: false })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  let left = count
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        await take(partition, message)
        if (--left === 0) resolve()
      },
    })
  })
  await consumer.disconnect()
}

async function main() {
  await create()
  await produce()
  const producer = kafka.producer({ transactionalId: target, maxInFlightRequests: 1, idempotent: true })
  await producer.connect()
  await read(`${source}-copies`, source, RECORDS, async (partition, message) => {
    for (const commits of message.offset % 10 == 0 ? [false, true] : [true]) {
      const transaction = await producer.transaction()
      await transaction.send({ topic: target, messages: [message] })
      const partitions = [{ partition, offset: `${BigInt(message.offset) + 1n}` }]
      await transaction.sendOffsets({ consumerGroupId: `${source}-copies`, topics: [{ topic: source, partitions }] })
      await (commits ? transaction.commit() : transaction.abort())
    }
  })
  await producer.disconnect()
  const found = []
  await read(`${source}-reads`, target, RECORDS, async (partition, { key, value, headers }) => {
    found.push([`${key}`, Number(`${value}`), `${headers.half}`])
  })
  const admin = kafka.admin()
  await admin.connect()
  const [offsets] = await admin.fetchOffsets({ groupId: `${source}-copies`, topics: [source] })
  await admin.disconnect()
  const committed = offsets.partitions.map(({ offset }) => Math.max(0, Number(offset)))
  console.log(JSON.stringify({ found, committed: committed.reduce((sum, each) => sum + each, 0) }))
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1) })
