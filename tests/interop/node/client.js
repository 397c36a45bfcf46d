'use strict';

// ali-ons, a client in JavaScript. See other_clients.py.

const httpclient = require('urllib');
const { Consumer, Message, Producer } = require('ali-ons');

const WAIT_MS = 60_000;

function say(found) {
  process.stdout.write(JSON.stringify(found) + '\n');
}

// Without keys of a cloud nothing is signed that a broker would look at.
function options(request) {
  return { httpclient, nameSrv: request.namesrv, accessKeyId: 'none', accessKeySecret: 'none' };
}

async function produce(request) {
  const producer = new Producer({ producerGroup: request.group, ...options(request) });
  await producer.ready();
  for (const one of request.messages) {
    const message = new Message(request.topic, one.tags, Buffer.from(one.body, 'base64'));
    message.keys = one.keys;
    Object.assign(message.properties, one.properties);
    if (one.delay_level) message.delayTimeLevel = one.delay_level;
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
  const found = [];
  await new Promise((resolve, reject) => {
    consumer.on('error', reject);
    setTimeout(() => reject(new Error(`${found.length} came, not ${request.count}`)), WAIT_MS);
    consumer.subscribe(request.topic, request.expression, async message => {
      const body = message.body.toString('base64');
      if (again.delete(body)) return Consumer.ACTION_RETRY;
      found.push({
        body,
        msg_id: message.msgId,
        queue_id: message.queueId,
        tags: message.tags || '',
        keys: message.keys || '',
        properties: Object.fromEntries(
          request.properties.map(name => [name, message.properties[name]])),
        reconsume_times: message.reconsumeTimes,
      });
      if (found.length >= request.count) resolve();
    });
  });
  await consumer.close();
  found.forEach(say);
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
