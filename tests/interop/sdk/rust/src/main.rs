// The Rust SDK rocketmq, controlled over stdin and stdout by interop/sdks.py.
//
// It has no push consumer: "push" receives and acknowledges in a loop.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::engine::general_purpose::STANDARD as BASE64;
use base64::Engine;
use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{AckMessageEntry, Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};

type Input = Lines<BufReader<Stdin>>;

fn tell(line: Value) {
    println!("{line}");
}

fn tell_error(error: &ClientError) {
    // The code is only in the context, by its name.
    let code = error.context().iter().find(|(name, _)| *name == "code").map(|(_, name)| name);
    tell(json!({"error": format!("{:?}", error.kind()), "code": code, "text": error.to_string()}));
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or("")
}

fn ms(value: &Value) -> Duration {
    Duration::from_millis(value.as_u64().unwrap_or(0))
}

fn client_option(request: &Value) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(text(request, "endpoint"));
    option.set_long_polling_timeout(ms(&request["await_ms"]));
    option
}

fn received(message: &MessageView) -> Value {
    json!({
        "message_id": message.message_id(),
        "body": BASE64.encode(message.body()),
        "tag": message.tag().unwrap_or(""),
        "keys": message.keys(),
        "properties": message.properties(),
        "group": message.message_group().unwrap_or(""),
        "attempt": message.delivery_attempt(),
        "at_ms": now_ms(),
    })
}

fn message_of(topic: &str, one: &Value, is_transaction: bool) -> Result<impl Message, ClientError> {
    let body = BASE64.decode(text(one, "body")).unwrap();
    let mut builder = MessageBuilder::builder().set_topic(topic).set_body(body);
    if !text(one, "tag").is_empty() {
        builder = builder.set_tag(text(one, "tag"));
    }
    let keys: Vec<String> = serde_json::from_value(one["keys"].clone()).unwrap();
    if !keys.is_empty() {
        builder = builder.set_keys(keys);
    }
    let properties: HashMap<String, String> =
        serde_json::from_value(one["properties"].clone()).unwrap();
    builder = builder.set_properties(properties);
    if !text(one, "group").is_empty() {
        builder = builder.set_message_group(text(one, "group"));
    }
    let delay_ms = one["delay_ms"].as_u64().unwrap_or(0);
    if delay_ms != 0 {
        builder = builder.set_delivery_timestamp(((now_ms() + delay_ms) / 1000) as i64);
    }
    if is_transaction {
        builder = builder.enable_transaction();
    }
    builder.build()
}

fn tell_sent(message_id: &str, transaction_id: &str) {
    tell(json!({
        "message_id": message_id,
        "queue_offset": null,
        "recall_handle": "",
        "transaction_id": transaction_id,
    }));
}

fn checked(left: &Mutex<HashMap<String, Vec<String>>>, first: &[String], message: &MessageView) -> String {
    let mut left = left.lock().unwrap();
    let answers = left.entry(message.message_id().to_string()).or_insert_with(|| first.to_vec());
    if answers.is_empty() {
        "commit".to_string()
    } else {
        answers.remove(0)
    }
}

async fn send(request: &Value, input: &mut Input) -> Result<(), ClientError> {
    let topic = text(request, "topic");
    let how = text(request, "how");
    let checks: Vec<String> = serde_json::from_value(request["checks"].clone()).unwrap();
    let waits = !checks.is_empty();
    let mut option = ProducerOption::default();
    option.set_topics(vec![topic]);
    let left = Mutex::new(HashMap::new());
    let checker = Box::new(move |_: String, message: MessageView| {
        let answer = checked(&left, &checks, &message);
        let mut line = received(&message);
        line["checked"] = json!(answer);
        tell(line);
        match answer.as_str() {
            "commit" => TransactionResolution::COMMIT,
            "rollback" => TransactionResolution::ROLLBACK,
            _ => TransactionResolution::UNKNOWN,
        }
    });
    let mut producer = if how == "transaction" {
        Producer::new_transaction_producer(option, client_option(request), checker)?
    } else {
        Producer::new(option, client_option(request))?
    };
    producer.start().await?;
    let producer = Arc::new(producer);
    let mut waiting = Vec::new();
    for one in request["messages"].as_array().unwrap() {
        if how == "async" {
            let (producer, topic, one) = (producer.clone(), topic.to_string(), one.clone());
            waiting.push(tokio::spawn(async move {
                let message = message_of(&topic, &one, false)?;
                let receipt = producer.send(message).await?;
                tell_sent(receipt.message_id(), receipt.transaction_id());
                Ok::<(), ClientError>(())
            }));
            continue;
        }
        if let Err(error) = send_one(&producer, request, one).await {
            tell_error(&error);
        }
        tokio::time::sleep(ms(&request["pause_ms"])).await;
    }
    for one in waiting {
        if let Err(error) = one.await.unwrap() {
            tell_error(&error);
        }
    }
    if waits {
        while let Ok(Some(_)) = input.next_line().await {}
    }
    if let Ok(producer) = Arc::try_unwrap(producer) {
        producer.shutdown().await?;
    }
    Ok(())
}

async fn send_one(producer: &Producer, request: &Value, one: &Value) -> Result<(), ClientError> {
    let topic = text(request, "topic");
    if text(request, "how") == "transaction" {
        let message = message_of(topic, one, true)?;
        let transaction = producer.send_transaction_message(message).await?;
        tell_sent(transaction.message_id(), transaction.transaction_id());
        tokio::time::sleep(ms(&request["hold_ms"])).await;
        return match text(one, "resolution") {
            "commit" => transaction.commit().await,
            "rollback" => transaction.rollback().await,
            _ => Ok(()),
        };
    }
    loop {
        match producer.send(message_of(topic, one, false)?).await {
            Ok(receipt) => {
                tell_sent(receipt.message_id(), receipt.transaction_id());
                return Ok(());
            }
            Err(error) if request["until_sent"].as_bool().unwrap() => eprintln!("{error}"),
            Err(error) => return Err(error),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn consumer_of(request: &Value) -> Result<(SimpleConsumer, FilterExpression), ClientError> {
    let mut option = SimpleConsumerOption::default();
    option.set_consumer_group(text(request, "group"));
    option.set_topics(vec![text(request, "topic")]);
    let mut consumer = SimpleConsumer::new(option, client_option(request))?;
    consumer.start().await?;
    let kind = if request["is_sql"].as_bool().unwrap() { FilterType::Sql } else { FilterType::Tag };
    Ok((consumer, FilterExpression::new(kind, text(request, "filter"))))
}

async fn simple(request: &Value, input: &mut Input) -> Result<(), ClientError> {
    let (consumer, filter) = consumer_of(request).await?;
    tell(json!({"started": true}));
    let mut messages: Vec<Arc<MessageView>> = Vec::new();
    while let Ok(Some(line)) = input.next_line().await {
        let step: Value = serde_json::from_str(&line).unwrap();
        let first = step[1].as_u64().unwrap() as usize;
        let name = step[0].as_str().unwrap();
        let result = match name {
            "receive" => {
                let topic = text(request, "topic");
                consumer.receive_with(topic, &filter, first as i32, ms(&step[2])).await.map(|found| {
                    for message in found {
                        tell(received(&message));
                        messages.push(Arc::new(message));
                    }
                })
            }
            "ack" => consumer.ack(&Shared(messages[first].clone())).await,
            _ => {
                messages.push(messages[first].clone());
                Ok(())
            }
        };
        match result {
            Ok(()) => tell(json!({"done": name})),
            Err(error) => tell_error(&error),
        }
    }
    consumer.shutdown().await
}

/// A message that is held more than once.
struct Shared(Arc<MessageView>);

impl AckMessageEntry for Shared {
    fn topic(&self) -> String {
        AckMessageEntry::topic(&*self.0)
    }

    fn message_id(&self) -> String {
        AckMessageEntry::message_id(&*self.0)
    }

    fn receipt_handle(&self) -> String {
        self.0.receipt_handle()
    }

    fn endpoints(&self) -> &rocketmq::model::common::Endpoints {
        self.0.endpoints()
    }
}

async fn push(request: &Value, input: &mut Input) -> Result<(), ClientError> {
    let (consumer, filter) = consumer_of(request).await?;
    tell(json!({"started": true}));
    let topic = text(request, "topic");
    loop {
        let receiving = consumer.receive_with(topic, &filter, 32, Duration::from_secs(60));
        let found = tokio::select! {
            found = receiving => found,
            _ = until_end(input) => break,
        };
        match found {
            Ok(messages) => {
                for message in messages {
                    tell(received(&message));
                    tokio::time::sleep(ms(&request["work_ms"])).await;
                    if let Err(error) = consumer.ack(&message).await {
                        eprintln!("{error}");
                    }
                }
            }
            Err(error) => {
                eprintln!("{error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    consumer.shutdown().await
}

async fn until_end(input: &mut Input) {
    while let Ok(Some(_)) = input.next_line().await {}
}

#[tokio::main]
async fn main() {
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let line = input.next_line().await.unwrap().unwrap();
    let request: Value = serde_json::from_str(&line).unwrap();
    let result = match text(&request, "do") {
        "send" => send(&request, &mut input).await,
        "simple" => simple(&request, &mut input).await,
        _ => push(&request, &mut input).await,
    };
    if let Err(error) = result {
        tell_error(&error);
    }
    tell(json!({"end": true}));
    std::process::exit(0);
}
