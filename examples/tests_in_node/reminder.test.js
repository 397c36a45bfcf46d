'use strict';

// A reminder that is due in an hour. Run it with: reput up --test-controls 0 -- npm test

const assert = require('node:assert');
const test = require('node:test');
const httpclient = require('urllib');
const { Consumer, Message, Producer } = require('ali-ons');

// The client always signs; a broker without access control does not look at the signature.
const options = {
  httpclient,
  nameSrv: process.env.NAMESRV_ADDR,
  accessKeyId: 'none',
  accessKeySecret: 'none',
};

async function control(call, body) {
  const url = process.env.REPUT_TEST_CONTROLS + call;
  const headers = { 'Content-Type': 'application/json' };
  const answer = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) });
  assert.strictEqual(answer.status, 200, await answer.text());
}

test('a reminder comes after an hour', { timeout: 60_000 }, async () => {
  await control('create-topic', { topic: 'RemindersOfNode' });
  const producer = new Producer({ producerGroup: 'reminders-of-node', ...options });
  await producer.ready();
  const consumer = new Consumer({
    consumerGroup: 'readers-of-node',
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    ...options,
  });
  const reminders = [];
  const came = new Promise(resolve => {
    consumer.subscribe('RemindersOfNode', '*', async message => {
      reminders.push(message.body.toString());
      resolve();
    });
  });

  const reminder = new Message('RemindersOfNode', 'invoices', 'pay the invoice');
  reminder.delayTimeLevel = 17; // an hour
  await producer.send(reminder);
  await new Promise(resolve => setTimeout(resolve, 500));
  assert.deepStrictEqual(reminders, []);
  await control('advance', { ms: 3_600_000 });
  await came;
  assert.deepStrictEqual(reminders, ['pay the invoice']);
  await consumer.close();
  await producer.close();
});

// The client's timers would keep the process alive.
test.after(() => setTimeout(() => process.exit(), 100));
