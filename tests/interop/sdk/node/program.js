// The Node SDK rocketmq-client-nodejs, controlled over stdin and stdout by interop/sdks.py.
'use strict';

const readline = require('node:readline');
const { setTimeout: pause } = require('node:timers/promises');
const {
  ConsumeResult, FilterExpression, LitePushConsumerBuilder, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } =
  require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

function tell(value) {
  process.stdout.write(JSON.stringify(value) + '\n');
}

function tellError(error) {
  const code = typeof error.code === 'number' ? error.code : null;
  tell({ error: error.name, code, text: error.message });
}

function subscriptions(request) {
  const type = request.is_sql ? FilterType.SQL : FilterType.TAG;
  return new Map([[request.topic, new FilterExpression(request.filter, type)]]);
}

function received(message) {
  return {
    message_id: message.messageId,
    body: message.body.toString('base64'),
    tag: message.tag ?? '',
    keys: message.keys,
    properties: Object.fromEntries(message.properties),
    group: message.messageGroup ?? '',
    lite_topic: message.liteTopic ?? '',
    attempt: message.deliveryAttempt,
    at_ms: Date.now(),
  };
}

function checker(answers) {
  const left = new Map();
  return {
    async check(message) {
      if (!left.has(message.messageId)) left.set(message.messageId, [...answers]);
      const answer = left.get(message.messageId).shift() ?? 'commit';
      tell({ checked: answer, ...received(message) });
      return {
        commit: TransactionResolution.COMMIT,
        rollback: TransactionResolution.ROLLBACK,
        unknown: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
      }[answer];
    },
  };
}

function messageOf(topic, wanted) {
  const message = { topic, body: Buffer.from(wanted.body, 'base64'), keys: wanted.keys };
  message.properties = new Map(Object.entries(wanted.properties));
  if (wanted.tag) message.tag = wanted.tag;
  if (wanted.group) message.messageGroup = wanted.group;
  if (wanted.lite_topic) message.liteTopic = wanted.lite_topic;
  if (wanted.delay_ms) message.delay = wanted.delay_ms;
  if (wanted.priority !== null) message.priority = wanted.priority;
  return message;
}

function tellSent(receipt) {
  tell({
    message_id: receipt.messageId,
    queue_offset: receipt.offset,
    recall_handle: receipt.recallHandle ?? '',
    transaction_id: receipt.transactionId,
  });
}

async function send(request, commands) {
  const producer = new Producer({
    endpoints: request.endpoint, topic: request.topic, checker: checker(request.checks),
  });
  await producer.startup();
  let waiting = [];
  for (const wanted of request.messages) {
    const message = messageOf(request.topic, wanted);
    if (request.how === 'async') {
      waiting.push(producer.send(message).then(tellSent, tellError));
      // The timeout of 3 s includes the time that a call waits in the SDK, and it sends again.
      if (waiting.length === 200) {
        await Promise.all(waiting);
        waiting = [];
      }
      continue;
    }
    try {
      await sendOne(producer, request, wanted, message);
    } catch (error) {
      tellError(error);
    }
    if (request.pause_ms) await pause(request.pause_ms);
  }
  await Promise.all(waiting);
  if (request.checks.length) while (!(await commands.next()).done);
  await producer.shutdown();
}

async function sendOne(producer, request, wanted, message) {
  if (request.how === 'transaction') {
    const transaction = producer.beginTransaction();
    tellSent(await producer.send(message, transaction));
    await pause(request.hold_ms);
    if (wanted.resolution === 'commit') await transaction.commit();
    if (wanted.resolution === 'rollback') await transaction.rollback();
    return;
  }
  let receipt;
  while (!receipt) {
    try {
      receipt = await producer.send(message);
    } catch (error) {
      if (!request.until_sent) throw error;
      console.error(error);
      await pause(100);
    }
  }
  tellSent(receipt);
  if (request.recall) {
    const recalled = await producer.recallMessage(request.topic, receipt.recallHandle);
    tell({ recalled: recalled.messageId });
  }
}

async function simple(request, commands) {
  const consumer = new SimpleConsumer({
    endpoints: request.endpoint,
    consumerGroup: request.group,
    subscriptions: subscriptions(request),
    awaitDuration: request.await_ms,
  });
  await consumer.startup();
  tell({ started: true });
  const messages = [];
  for await (const line of commands) {
    const [step, first, second] = JSON.parse(line);
    try {
      if (step === 'receive') {
        for (const message of await consumer.receive(first, second)) {
          messages.push(message);
          tell(received(message));
        }
      } else if (step === 'ack') {
        await consumer.ack(messages[first]);
      } else if (step === 'change') {
        // This SDK returns the new handle, and leaves the message as it is.
        const handle = await consumer.changeInvisibleDuration(messages[first], second);
        if (handle) messages[first].receiptHandle = handle;
      } else if (step === 'copy') {
        messages.push(Object.assign(Object.create(Object.getPrototypeOf(messages[first])), messages[first]));
      }
      tell({ done: step });
    } catch (error) {
      tellError(error);
    }
  }
  await consumer.shutdown();
}

function listener(request) {
  return {
    async consume(message) {
      tell(received(message));
      if (request.work_ms) await pause(request.work_ms);
      return message.deliveryAttempt <= request.fail ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    },
  };
}

async function lite(request, commands) {
  const consumer = await new LitePushConsumerBuilder()
    .setClientConfiguration({ endpoints: request.endpoint })
    .setConsumerGroup(request.group)
    .bindTopic(request.topic)
    .setMessageListener(listener(request))
    .build();
  for (const name of request.lite_topics) await consumer.subscribeLite(name);
  tell({ started: true });
  while (!(await commands.next()).done);
  await consumer.close();
}

async function push(request, commands) {
  const consumer = new PushConsumer({
    endpoints: request.endpoint,
    consumerGroup: request.group,
    subscriptions: subscriptions(request),
    messageListener: listener(request),
  });
  await consumer.startup();
  tell({ started: true });
  while (!(await commands.next()).done);
  await consumer.shutdown();
}

async function main() {
  const commands = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  const request = JSON.parse((await commands.next()).value);
  try {
    await { send, simple, push, lite }[request.do](request, commands);
  } catch (error) {
    tellError(error);
  }
  tell({ end: true });
  // A client that did not start keeps trying.
  process.stdout.write('', () => process.exit());
}

main();
