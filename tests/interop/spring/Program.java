package interop;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.client.annotation.RocketMQMessageListener;
import org.apache.rocketmq.client.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.common.Pair;
import org.apache.rocketmq.client.core.RocketMQClientTemplate;
import org.apache.rocketmq.client.core.RocketMQListener;
import org.apache.rocketmq.client.core.RocketMQTransactionChecker;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.annotation.Bean;

/** An application with Spring's starter of 5.x, controlled over stdin and stdout by interop/test_spring.py. */
@SpringBootConfiguration
@EnableAutoConfiguration
public class Program {
    private static final Gson GSON = new Gson();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Map<String, Object> settings = new HashMap<>();
        JsonParser.parseString(in.readLine()).getAsJsonObject().entrySet()
                .forEach(entry -> settings.put(entry.getKey(), entry.getValue().getAsString()));
        SpringApplication application = new SpringApplication(Program.class);
        application.setDefaultProperties(settings);
        try {
            RocketMQClientTemplate template = application.run().getBean(RocketMQClientTemplate.class);
            tell(Map.of("started", true));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                step(template, JsonParser.parseString(line).getAsJsonObject());
            }
        } catch (Throwable error) {
            error.printStackTrace();
            tell(Map.of("error", error.getClass().getSimpleName(), "code", 0, "text", "" + error.getMessage()));
        }
        tell(Map.of("end", true));
        System.exit(0);
    }

    private static synchronized void tell(Map<String, ?> line) {
        System.out.println(GSON.toJson(line));
        System.out.flush();
    }

    private static void step(RocketMQClientTemplate template, JsonObject step) throws Exception {
        String how = step.get("do").getAsString();
        if (how.equals("receive")) {
            for (MessageView message : template.receive(16, Duration.ofSeconds(20))) {
                tell(received("received", message));
                template.ack(message);
            }
            tell(Map.of("done", how));
            return;
        }
        String destination = step.get("destination").getAsString();
        String body = step.get("body").getAsString();
        SendReceipt receipt = switch (how) {
            case "normal" -> template.syncSendNormalMessage(destination, body);
            case "async" -> template.asyncSendNormalMessage(destination, body, new CompletableFuture<>()).get();
            case "fifo" -> template.syncSendFifoMessage(destination, body, "group");
            case "delay" -> template.syncSendDelayMessage(destination, body, Duration.ofSeconds(2));
            default -> transaction(template, destination, body, how);
        };
        tell(Map.of("sent", receipt.getMessageId().toString()));
    }

    private static SendReceipt transaction(
            RocketMQClientTemplate template, String destination, String body, String how) throws Exception {
        Pair<SendReceipt, Transaction> pair = template.sendMessageInTransaction(destination, body);
        if (how.equals("commit")) {
            pair.getTransaction().commit();
        } else if (how.equals("rollback")) {
            pair.getTransaction().rollback();
        }
        return pair.getSendReceipt();
    }

    private static Map<String, Object> received(String name, MessageView message) {
        Map<String, Object> line = new TreeMap<>();
        line.put(name, StandardCharsets.UTF_8.decode(message.getBody()).toString());
        line.put("message_id", message.getMessageId().toString());
        line.put("tag", message.getTag().orElse(""));
        line.put("attempt", message.getDeliveryAttempt());
        return line;
    }

    /** Fails once for each body that begins with "again". */
    @RocketMQMessageListener(topic = "Orders", tag = "a || b", consumerGroup = "listeners")
    static class Listener implements RocketMQListener {
        @Override
        public ConsumeResult consume(MessageView message) {
            Map<String, Object> line = received("pushed", message);
            tell(line);
            boolean fails = line.get("pushed").toString().startsWith("again") && message.getDeliveryAttempt() == 1;
            return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        }
    }

    @RocketMQTransactionListener
    static class Checker implements RocketMQTransactionChecker {
        @Override
        public TransactionResolution check(MessageView message) {
            tell(received("checked", message));
            return TransactionResolution.COMMIT;
        }
    }

    @Bean
    Listener listener() {
        return new Listener();
    }

    @Bean
    Checker checker() {
        return new Checker();
    }
}
