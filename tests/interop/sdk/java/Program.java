import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.java.impl.producer.SendReceiptImpl;
import org.apache.rocketmq.client.java.message.MessageViewImpl;

/** The Java SDK rocketmq-client-java, controlled over stdin and stdout by interop/sdks.py. */
public class Program {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Gson GSON = new Gson();
    private static final BufferedReader IN =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    public static void main(String[] arguments) throws Exception {
        try {
            JsonObject request = JsonParser.parseString(IN.readLine()).getAsJsonObject();
            switch (request.get("do").getAsString()) {
                case "send" -> send(request);
                case "simple" -> simple(request);
                case "lite" -> lite(request);
                default -> push(request);
            }
        } catch (Throwable error) {
            tellError(error);
        }
        tell(Map.of("end", true));
        System.exit(0);
    }

    private static synchronized void tell(Map<String, ?> line) {
        System.out.println(GSON.toJson(line));
        System.out.flush();
    }

    private static void tellError(Throwable error) {
        while (error instanceof CompletionException && error.getCause() != null) {
            error = error.getCause();
        }
        Map<String, Object> line = new TreeMap<>();
        line.put("error", error.getClass().getSimpleName());
        line.put("text", String.valueOf(error.getMessage()));
        if (error instanceof ClientException) {
            // The code is only in the text.
            String[] parts = line.get("text").toString().split("response-code=", 2);
            if (parts.length == 2) {
                line.put("code", Integer.parseInt(parts[1].split("[^0-9]", 2)[0]));
            }
        }
        line.putIfAbsent("code", null);
        tellNulls(line);
    }

    private static synchronized void tellNulls(Map<String, ?> line) {
        System.out.println(GSON.newBuilder().serializeNulls().create().toJson(line));
        System.out.flush();
    }

    private static ClientConfiguration configuration(JsonObject request) {
        return ClientConfiguration.newBuilder().setEndpoints(request.get("endpoint").getAsString()).build();
    }

    private static Map<String, FilterExpression> subscriptions(JsonObject request) {
        FilterExpressionType type = request.get("is_sql").getAsBoolean()
                ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        FilterExpression filter = new FilterExpression(request.get("filter").getAsString(), type);
        return Collections.singletonMap(request.get("topic").getAsString(), filter);
    }

    private static Map<String, Object> received(MessageView message) {
        ByteBuffer buffer = message.getBody();
        byte[] body = new byte[buffer.remaining()];
        buffer.get(body);
        Map<String, Object> line = new TreeMap<>();
        line.put("message_id", message.getMessageId().toString());
        line.put("body", Base64.getEncoder().encodeToString(body));
        line.put("tag", message.getTag().orElse(""));
        line.put("keys", message.getKeys());
        line.put("properties", message.getProperties());
        line.put("group", message.getMessageGroup().orElse(""));
        line.put("lite_topic", message.getLiteTopic().orElse(""));
        line.put("attempt", message.getDeliveryAttempt());
        line.put("at_ms", System.currentTimeMillis());
        return line;
    }

    private static TransactionChecker checker(JsonArray answers) {
        Map<String, Deque<String>> left = new ConcurrentHashMap<>();
        return message -> {
            Deque<String> mine = left.computeIfAbsent(message.getMessageId().toString(), id -> {
                Deque<String> all = new ArrayDeque<>();
                answers.forEach(answer -> all.add(answer.getAsString()));
                return all;
            });
            String answer = mine.isEmpty() ? "commit" : mine.poll();
            Map<String, Object> line = received(message);
            line.put("checked", answer);
            tell(line);
            return TransactionResolution.valueOf(answer.toUpperCase());
        };
    }

    private static Message messageOf(String topic, JsonObject wanted) {
        MessageBuilder builder = PROVIDER.newMessageBuilder()
                .setTopic(topic)
                .setBody(Base64.getDecoder().decode(wanted.get("body").getAsString()));
        if (!wanted.get("tag").getAsString().isEmpty()) {
            builder.setTag(wanted.get("tag").getAsString());
        }
        List<String> keys = new ArrayList<>();
        wanted.getAsJsonArray("keys").forEach(key -> keys.add(key.getAsString()));
        if (!keys.isEmpty()) {
            builder.setKeys(keys.toArray(new String[0]));
        }
        for (Map.Entry<String, JsonElement> property : wanted.getAsJsonObject("properties").entrySet()) {
            builder.addProperty(property.getKey(), property.getValue().getAsString());
        }
        if (!wanted.get("group").getAsString().isEmpty()) {
            builder.setMessageGroup(wanted.get("group").getAsString());
        }
        if (!wanted.get("lite_topic").getAsString().isEmpty()) {
            builder.setLiteTopic(wanted.get("lite_topic").getAsString());
        }
        if (wanted.get("delay_ms").getAsLong() != 0) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + wanted.get("delay_ms").getAsLong());
        }
        if (!wanted.get("priority").isJsonNull()) {
            builder.setPriority(wanted.get("priority").getAsInt());
        }
        return builder.build();
    }

    private static void tellSent(SendReceipt receipt) {
        Map<String, Object> line = new TreeMap<>();
        line.put("message_id", receipt.getMessageId().toString());
        line.put("queue_offset", null);
        line.put("recall_handle", receipt.getRecallHandle() == null ? "" : receipt.getRecallHandle());
        line.put("transaction_id", ((SendReceiptImpl) receipt).getTransactionId());
        tellNulls(line);
    }

    private static void untilEnd() throws Exception {
        while (IN.readLine() != null) {
            continue;
        }
    }

    private static void send(JsonObject request) throws Exception {
        String topic = request.get("topic").getAsString();
        String how = request.get("how").getAsString();
        JsonArray checks = request.getAsJsonArray("checks");
        try (Producer producer = PROVIDER.newProducerBuilder()
                .setClientConfiguration(configuration(request))
                .setTopics(topic)
                .setTransactionChecker(checker(checks))
                .build()) {
            List<CompletableFuture<?>> waiting = new ArrayList<>();
            for (JsonElement wanted : request.getAsJsonArray("messages")) {
                try {
                    Message message = messageOf(topic, wanted.getAsJsonObject());
                    if (how.equals("async")) {
                        waiting.add(producer.sendAsync(message).handle((receipt, error) -> {
                            if (error == null) {
                                tellSent(receipt);
                            } else {
                                tellError(error);
                            }
                            return null;
                        }));
                        continue;
                    }
                    sendOne(producer, request, wanted.getAsJsonObject(), message);
                } catch (Throwable error) {
                    tellError(error);
                }
                Thread.sleep(request.get("pause_ms").getAsLong());
            }
            for (CompletableFuture<?> one : waiting) {
                one.join();
            }
            if (!checks.isEmpty()) {
                untilEnd();
            }
        }
    }

    private static void sendOne(Producer producer, JsonObject request, JsonObject wanted, Message message)
            throws Exception {
        if (request.get("how").getAsString().equals("transaction")) {
            Transaction transaction = producer.beginTransaction();
            tellSent(producer.send(message, transaction));
            Thread.sleep(request.get("hold_ms").getAsLong());
            if (wanted.get("resolution").getAsString().equals("commit")) {
                transaction.commit();
            } else if (wanted.get("resolution").getAsString().equals("rollback")) {
                transaction.rollback();
            }
            return;
        }
        SendReceipt receipt = null;
        while (receipt == null) {
            try {
                receipt = producer.send(message);
            } catch (Exception error) {
                // Without a connection it is gRPC's StatusRuntimeException.
                if (!request.get("until_sent").getAsBoolean()) {
                    throw error;
                }
                System.err.println(error);
                Thread.sleep(100);
            }
        }
        tellSent(receipt);
        if (request.get("recall").getAsBoolean()) {
            String topic = request.get("topic").getAsString();
            tell(Map.of("recalled",
                    producer.recallMessage(topic, receipt.getRecallHandle()).getMessageId().toString()));
        }
    }

    private static void simple(JsonObject request) throws Exception {
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration(request))
                .setConsumerGroup(request.get("group").getAsString())
                .setAwaitDuration(Duration.ofMillis(request.get("await_ms").getAsLong()))
                .setSubscriptionExpressions(subscriptions(request))
                .build()) {
            tell(Map.of("started", true));
            List<MessageView> messages = new ArrayList<>();
            // The SDK replaces the handle in a message.
            Map<Integer, String> handles = new TreeMap<>();
            for (String line = IN.readLine(); line != null; line = IN.readLine()) {
                JsonArray step = JsonParser.parseString(line).getAsJsonArray();
                String name = step.get(0).getAsString();
                int first = step.get(1).getAsInt();
                try {
                    switch (name) {
                        case "receive" -> {
                            Duration invisible = Duration.ofMillis(step.get(2).getAsLong());
                            List<CompletableFuture<List<MessageView>>> receives = new ArrayList<>();
                            for (int receive = 0; receive < (step.size() < 4 ? 1 : step.get(3).getAsInt()); receive++) {
                                receives.add(consumer.receiveAsync(first, invisible));
                            }
                            for (CompletableFuture<List<MessageView>> received : receives) {
                                for (MessageView message : received.join()) {
                                    messages.add(message);
                                    tell(received(message));
                                }
                            }
                        }
                        case "ack" -> {
                            MessageViewImpl message = (MessageViewImpl) messages.get(first);
                            String now = message.getReceiptHandle();
                            message.setReceiptHandle(handles.getOrDefault(first, now));
                            consumer.ack(message);
                            message.setReceiptHandle(now);
                        }
                        case "change" -> consumer.changeInvisibleDuration(
                                messages.get(first), Duration.ofMillis(step.get(2).getAsLong()));
                        default -> {
                            MessageViewImpl message = (MessageViewImpl) messages.get(first);
                            handles.put(messages.size(), message.getReceiptHandle());
                            messages.add(message);
                        }
                    }
                    tell(Map.of("done", name));
                } catch (Throwable error) {
                    tellError(error);
                }
            }
        }
    }

    private static MessageListener listener(JsonObject request) {
        int fail = request.get("fail").getAsInt();
        long work = request.get("work_ms").getAsLong();
        return message -> {
            tell(received(message));
            try {
                Thread.sleep(work);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
            return message.getDeliveryAttempt() <= fail ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        };
    }

    private static void push(JsonObject request) throws Exception {
        try (PushConsumer consumer = PROVIDER.newPushConsumerBuilder()
                .setClientConfiguration(configuration(request))
                .setConsumerGroup(request.get("group").getAsString())
                .setSubscriptionExpressions(subscriptions(request))
                .setMessageListener(listener(request))
                .build()) {
            tell(Map.of("started", true));
            untilEnd();
        }
    }

    private static void lite(JsonObject request) throws Exception {
        try (LitePushConsumer consumer = PROVIDER.newLitePushConsumerBuilder()
                .setClientConfiguration(configuration(request))
                .setConsumerGroup(request.get("group").getAsString())
                .bindTopic(request.get("topic").getAsString())
                .setMessageListener(listener(request))
                .build()) {
            for (JsonElement name : request.getAsJsonArray("lite_topics")) {
                consumer.subscribeLite(name.getAsString());
            }
            tell(Map.of("started", true));
            untilEnd();
        }
    }
}
