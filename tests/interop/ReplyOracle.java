import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Java's requests and replies (4.6 and later). */
public final class ReplyOracle extends WordOracle {
    private static int clients;

    public static void main(String[] arguments) throws Exception {
        new ReplyOracle().serve();
    }

    @Override
    Object run(String command, Iterator<String> words) throws Exception {
        switch (command) {
            case "request": return request(text(words), text(words), text(words),
                longNumber(words));
            case "replier": return replier(text(words), text(words), text(words));
            default: throw new IllegalArgumentException("no command " + command);
        }
    }

    /** Sends a request, and returns the body and the properties of the reply. */
    private static Object request(String namesrv, String topic, String body, long timeoutMillis)
        throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("askers-" + ++clients, Signing.HOOK);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("asker-" + clients);
        producer.start();
        try {
            Message message = new Message(topic, "tag", body.getBytes(StandardCharsets.UTF_8));
            Message reply = producer.request(message, timeoutMillis);
            Map<String, String> found = new TreeMap<>(reply.getProperties());
            found.put("body", new String(reply.getBody(), StandardCharsets.UTF_8));
            found.put("topic", reply.getTopic());
            return found;
        } finally {
            producer.shutdown();
        }
    }

    /** Starts a consumer that replies to each message with "re: " and its body. */
    private static Object replier(String namesrv, String topic, String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("repliers-" + ++clients, Signing.HOOK);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("replier-" + clients);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, Signing.HOOK,
            new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("replier-" + clients);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt one : messages) {
                try {
                    String body = "re: " + new String(one.getBody(), StandardCharsets.UTF_8);
                    producer.send(MessageUtil.createReplyMessage(one,
                        body.getBytes(StandardCharsets.UTF_8)), 5000);
                } catch (Exception e) {
                    e.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return "started";
    }
}
