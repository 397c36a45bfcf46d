'use strict';

// ali-ons, a client in JavaScript. See other_clients.py.

const httpclient = require('urllib');
const { Consumer, Message, Producer } = require('ali-ons');

const WAIT_MS = 60_000;

function say(document) {
  process.stdout.write(JSON.stringify(document) + '\n');
}

// The client always signs; a broker without access control does not look at the signature.
function options(request) {
  return {
    httpclient,
    nameSrv: request.namesrv,
    accessKeyId: process.env.ROCKETMQ_ACCESS_KEY || 'none',
    accessKeySecret: process.env.ROCKETMQ_SECRET_KEY || 'none',
  };
}

async function produce(request) {
  const producer = new Producer({ producerGroup: request.group, ...options(request) });
  await producer.ready();
  for (const fields of request.messages) {
    const message = new Message(request.topic, fields.tags, Buffer.from(fields.body, 'base64'));
    message.keys = fields.keys;
    Object.assign(message.properties, fields.properties);
    if (fields.delay_level) message.delayTimeLevel = fields.delay_level;
    const result = await producer.send(message);
    say({ status: result.sendStatus, msg_id: result.msgId });
  }
  await producer.close();
}

async function consume(request) {
  const consumer = new Consumer({
    consumerGroup: request.group,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    ...options(request),
  });
  const again = new Set(request.again);
  const received = [];
  await new Promise((resolve, reject) => {
    consumer.on('error', reject);
    setTimeout(() => reject(new Error(`${received.length} came, not ${request.count}`)), WAIT_MS);
    consumer.subscribe(request.topic, request.expression, async message => {
      const body = message.body.toString('base64');
      if (again.delete(body)) return Consumer.ACTION_RETRY;
      received.push({
        body,
        msg_id: message.msgId,
        queue_id: message.queueId,
        tags: message.tags || '',
        keys: message.keys || '',
        properties: Object.fromEntries(
          request.properties.map(name => [name, message.properties[name]])),
        reconsume_times: message.reconsumeTimes,
      });
      if (received.length >= request.count) resolve();
    });
  });
  await consumer.close();
  received.forEach(say);
}

let text = '';
process.stdin.on('data', data => { text += data; });
process.stdin.on('end', async () => {
  try {
    const request = JSON.parse(text);
    await { produce, consume }[request.do](request);
    say({ end: true });
    process.exit(0);
  } catch (error) {
    console.error(error);
    process.exit(1);
  }
});
