// The remoting client of rocketmq-rust, controlled over stdin and stdout by other_clients.py.
//
// The request is one line of JSON, the results are further lines, as of the Go client
// (../go/main.go). More values of "how" when producing: "ordered" sends to the queue of the keys,
// "transaction" commits messages, but rolls back those whose body begins with "rollback", and
// commits those that begin with "later" when the broker asks. Values of "how" when consuming:
// "push", "pull" (the lite pull consumer), "pop" (a push consumer whose queues the broker assigns).

#![recursion_limit = "512"]

use std::any::Any;
use std::collections::HashSet;
use std::io::BufRead;
use std::process::exit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::engine::general_purpose::STANDARD as BASE64;
use base64::Engine;
use rocketmq_client_rust::{
    ClientResult, ClientRuntime, ClientRuntimeConfig, ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus, ConsumeOrderlyContext, ConsumeOrderlyStatus,
    DefaultLitePullConsumer, DefaultMQProducer, DefaultMQPushConsumer, LocalTransactionState,
    MQPushConsumer, MessageListenerConcurrently, MessageListenerOrderly, MessageQueueSelector,
    SelectMessageQueueByHash, TransactionListener, TransactionMQProducer,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_model::common::message::MessageTrait;
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};
use serde_json::{json, Value};
use tokio::sync::mpsc::{unbounded_channel, UnboundedSender};
use tokio::sync::Notify;

const CONSUME_S: u64 = 60;
const SEND_MS: u64 = 10_000;

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or("")
}

fn keys(value: &Value) -> Vec<String> {
    let list = value["keys"].as_array().cloned().unwrap_or_default();
    list.iter().filter_map(|key| key.as_str().map(String::from)).collect()
}

fn message(topic: &str, wanted: &Value) -> Message {
    let body = BASE64.decode(text(wanted, "body")).expect("base64");
    let mut builder = Message::builder().topic(topic).body(body);
    if !text(wanted, "tags").is_empty() {
        builder = builder.tags(text(wanted, "tags"));
    }
    if !keys(wanted).is_empty() {
        builder = builder.keys(keys(wanted));
    }
    let level = wanted["delay_level"].as_i64().unwrap_or(0);
    if level > 0 {
        builder = builder.delay_level(level as i32);
    }
    let mut message = builder.build_unchecked();
    for (name, value) in wanted["properties"].as_object().into_iter().flatten() {
        message.put_property(name.as_str().into(), value.as_str().unwrap_or("").into());
    }
    message
}

#[derive(Clone)]
struct Decider {
    asked: Arc<Notify>,
}

impl TransactionListener for Decider {
    fn execute_local_transaction(
        &self,
        message: &dyn MessageTrait,
        _argument: Option<&(dyn Any + Send + Sync)>,
    ) -> LocalTransactionState {
        let body = message.get_body().cloned().unwrap_or_default();
        if body.starts_with(b"rollback") {
            LocalTransactionState::RollbackMessage
        } else if body.starts_with(b"later") {
            LocalTransactionState::Unknown
        } else {
            LocalTransactionState::CommitMessage
        }
    }

    fn check_local_transaction(&self, _message: &MessageExt) -> LocalTransactionState {
        self.asked.notify_one();
        LocalTransactionState::CommitMessage
    }
}

async fn produce(runtime: Arc<ClientRuntime>, request: &Value) -> ClientResult<()> {
    let topic = text(request, "topic").to_string();
    let namesrv = text(request, "namesrv").to_string();
    let list = request["messages"].as_array().cloned().unwrap_or_default();
    let messages: Vec<Message> = list.iter().map(|wanted| message(&topic, wanted)).collect();
    if text(request, "how") == "transaction" {
        let decider = Decider { asked: Arc::new(Notify::new()) };
        let mut producer = TransactionMQProducer::builder(runtime)
            .producer_group(text(request, "group").to_string())
            .name_server_addr(namesrv)
            .topics(vec![topic.as_str()])
            .transaction_listener(decider.clone())
            .build();
        producer.start().await?;
        let is_undecided = messages.iter().any(|one| one.body_slice().starts_with(b"later"));
        let asked = Arc::clone(&decider.asked);
        for one in messages {
            let result = producer.send_message_in_transaction::<(), _>(one, None).await?;
            println!("{}", json!({"status": "SEND_OK", "text": result.to_string()}));
        }
        if is_undecided {
            // Until the broker has asked this producer, and the decision is written.
            let _ = tokio::time::timeout(Duration::from_secs(CONSUME_S), asked.notified()).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        producer.shutdown().await;
        return Ok(());
    }
    let mut producer = DefaultMQProducer::builder(runtime)
        .producer_group(text(request, "group").to_string())
        .name_server_addr(namesrv)
        .build();
    producer.start().await?;
    match text(request, "how") {
        "batch" => {
            let result = producer.send_batch(messages).await?;
            println!("{}", json!({"status": format!("{:?}", result.send_status)}));
        }
        "oneway" => {
            for one in messages {
                producer.send_oneway(one).await?;
            }
            tokio::time::sleep(Duration::from_secs(1)).await; // until they are written
        }
        how => {
            for (number, one) in messages.into_iter().enumerate() {
                let key = keys(&list[number]).concat();
                let result = if how == "ordered" {
                    let selector = SelectMessageQueueByHash;
                    producer
                        .send_with_selector(one, move |queues, m, k| selector.select(queues, m, k), key)
                        .await?
                } else {
                    producer.send_with_timeout(one, SEND_MS).await?
                };
                let result = result.expect("a result");
                println!(
                    "{}",
                    json!({
                        "status": format!("{:?}", result.send_status),
                        "msg_id": result.msg_id.map(|id| id.to_string()),
                        "queue_id": result.message_queue.map(|queue| queue.queue_id()),
                    })
                );
            }
        }
    }
    producer.shutdown().await;
    Ok(())
}

fn received(message: &MessageExt, names: &[String]) -> Value {
    let properties = message.properties();
    let property = |name: &str| {
        let value = properties.iter().find(|(key, _)| key.as_str() == name);
        value.map(|(_, value)| value.to_string()).unwrap_or_default()
    };
    let chosen: serde_json::Map<String, Value> =
        names.iter().map(|name| (name.clone(), json!(property(name)))).collect();
    json!({
        "body": BASE64.encode(message.body().unwrap_or_default()),
        "msg_id": message.msg_id().to_string(),
        "queue_id": message.queue_id(),
        "tags": property("TAGS"),
        "keys": property("KEYS"),
        "properties": chosen,
        "reconsume_times": message.reconsume_times(),
    })
}

#[derive(Clone)]
struct Listener {
    results: UnboundedSender<Value>,
    names: Vec<String>,
    again: HashSet<String>,
}

impl Listener {
    /// Reports messages; returns false if one of them must come again.
    fn take(&self, messages: &[&MessageExt]) -> bool {
        for message in messages {
            let value = received(message, &self.names);
            if self.again.contains(text(&value, "body")) && message.reconsume_times() == 0 {
                return false;
            }
            let _ = self.results.send(value);
        }
        true
    }
}

impl MessageListenerConcurrently for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _context: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        Ok(if self.take(messages) {
            ConsumeConcurrentlyStatus::ConsumeSuccess
        } else {
            ConsumeConcurrentlyStatus::ReconsumeLater
        })
    }
}

impl MessageListenerOrderly for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _context: &mut ConsumeOrderlyContext,
    ) -> ClientResult<ConsumeOrderlyStatus> {
        Ok(if self.take(messages) {
            ConsumeOrderlyStatus::Success
        } else {
            ConsumeOrderlyStatus::SuspendCurrentQueueAMoment
        })
    }
}

async fn consume(runtime: Arc<ClientRuntime>, request: &Value) -> ClientResult<()> {
    let count = request["count"].as_u64().unwrap_or(0) as usize;
    let names: Vec<String> = request["properties"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|name| name.as_str().map(String::from))
        .collect();
    let deadline = Instant::now() + Duration::from_secs(CONSUME_S);
    let (topic, expression) = (text(request, "topic"), text(request, "expression"));
    if text(request, "how") == "pull" {
        let consumer = DefaultLitePullConsumer::builder(runtime)
            .consumer_group(text(request, "group").to_string())
            .name_server_addr(text(request, "namesrv").to_string())
            .build()?;
        consumer.set_consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset).await?;
        consumer.subscribe_with_expression(topic, expression).await?;
        consumer.start().await?;
        let mut done = 0;
        while done < count && Instant::now() < deadline {
            for message in consumer.poll_with_timeout(1000).await {
                println!("{}", received(&message, &names));
                done += 1;
            }
        }
        consumer.shutdown().await;
        if done < count {
            println!("{}", json!({"error": format!("{done} of {count} messages")}));
            exit(1);
        }
        return Ok(());
    }
    let (results, mut arrived) = unbounded_channel();
    let again = request["again"].as_array().into_iter().flatten();
    let again = again.filter_map(|body| body.as_str().map(String::from)).collect();
    let listener = Listener { results, names, again };
    let mut consumer = DefaultMQPushConsumer::builder(runtime)
        .consumer_group(text(request, "group").to_string())
        .name_server_addr(text(request, "namesrv").to_string())
        .client_rebalance(text(request, "how") != "pop")
        .build();
    consumer.set_consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset);
    consumer.subscribe(topic, expression).await?;
    if request["orderly"].as_bool().unwrap_or(false) {
        consumer.register_message_listener_orderly(listener);
    } else {
        consumer.register_message_listener_concurrently(listener);
    }
    consumer.start().await?;
    for done in 0..count {
        let left = deadline.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, arrived.recv()).await {
            Ok(Some(value)) => println!("{value}"),
            _ => {
                println!("{}", json!({"error": format!("{done} of {count} messages")}));
                exit(1);
            }
        }
    }
    consumer.shutdown().await;
    Ok(())
}

async fn run(request: &Value) -> ClientResult<()> {
    let owner = RuntimeOwner::plan(RuntimeConfig {
        thread_name: "client".to_string(),
        ..Default::default()
    })
    .expect("a runtime's settings")
    .build()
    .expect("a runtime");
    let bootstrap = rocketmq_observability::TelemetryBootstrapConfig::default();
    let telemetry = rocketmq_observability::install_global(&bootstrap).expect("telemetry");
    let runtime = ClientRuntime::try_new(
        owner.root_context().component("client"),
        ClientRuntimeConfig::default(),
        telemetry.handle(),
    )?;
    match text(request, "do") {
        "produce" => produce(runtime, request).await,
        _ => consume(runtime, request).await,
    }
}

#[tokio::main]
async fn main() {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).expect("a request");
    let request: Value = serde_json::from_str(&line).expect("JSON");
    let last = match run(&request).await {
        Ok(()) => json!({"end": true}),
        Err(error) => json!({"error": error.to_string()}),
    };
    println!("{last}");
    // Threads of the client may still run.
    exit(if last["end"].is_null() { 1 } else { 0 });
}
