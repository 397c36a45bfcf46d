import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.Test;

/** A reminder that is due in an hour. Run it with: reput up --test-controls 0 -- mvn test */
class ReminderTest {
    private final BlockingQueue<String> reminders = new LinkedBlockingQueue<>();

    @Test
    void aReminderComesAfterAnHour() throws Exception {
        control("create-topic", "{\"topic\": \"RemindersOfJava\"}");
        // Both clients find the name server in NAMESRV_ADDR.
        DefaultMQProducer producer = new DefaultMQProducer("reminders-of-java");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("readers-of-java");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("RemindersOfJava", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> reminders.add(new String(message.getBody(), StandardCharsets.UTF_8)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        try {
            producer.start();
            consumer.start();
            Message reminder = new Message("RemindersOfJava", "pay the invoice".getBytes(StandardCharsets.UTF_8));
            reminder.setDelayTimeLevel(17); // an hour
            producer.send(reminder);
            assertNull(reminders.poll(500, TimeUnit.MILLISECONDS));
            control("advance", "{\"ms\": 3600000}");
            assertEquals("pay the invoice", reminders.poll(30, TimeUnit.SECONDS));
        } finally {
            producer.shutdown();
            consumer.shutdown();
        }
    }

    private static void control(String call, String arguments) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(System.getenv("REPUT_TEST_CONTROLS") + call))
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(arguments))
            .build();
        var answer = HttpClient.newHttpClient().send(request, BodyHandlers.ofString());
        assertEquals(200, answer.statusCode(), answer.body());
    }
}
