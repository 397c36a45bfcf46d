import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.producer.RecallMessageHandle;

/** Java's producer of messages with a delivery time, which it can recall (5.3 and later). */
public final class TimerOracle extends WordOracle {
    private static final Map<String, DefaultMQProducer> PRODUCERS = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        new TimerOracle().serve();
    }

    @Override
    Object run(String command, Iterator<String> words) throws Exception {
        switch (command) {
            case "send": return send(producer(text(words)), text(words), text(words), text(words),
                longNumber(words));
            case "recall": return producer(text(words)).recallMessage(text(words), text(words));
            case "handle": return RecallMessageHandle.HandleV1.buildHandle(text(words),
                text(words), text(words), text(words));
            case "decode": {
                RecallMessageHandle.HandleV1 handle =
                    (RecallMessageHandle.HandleV1) RecallMessageHandle.decodeHandle(text(words));
                return List.of(handle.getTopic(), handle.getBrokerName(),
                    handle.getTimestampStr(), handle.getMessageId());
            }
            default: throw new IllegalArgumentException("no command " + command);
        }
    }

    private static DefaultMQProducer producer(String namesrv) throws Exception {
        DefaultMQProducer producer = PRODUCERS.get(namesrv);
        if (producer == null) {
            producer = new DefaultMQProducer("timer-producers");
            producer.setNamesrvAddr(namesrv);
            producer.setInstanceName("timer-" + PRODUCERS.size());
            producer.setSendMsgTimeout(10_000);
            producer.start();
            PRODUCERS.put(namesrv, producer);
        }
        return producer;
    }

    /** Sends a message with a delivery time: kind is "sec", "ms" or "at". */
    private static Object send(
        DefaultMQProducer producer, String topic, String body, String kind, long value)
        throws Exception {
        Message message = new Message(topic, "tag", body.getBytes(StandardCharsets.UTF_8));
        switch (kind) {
            case "sec": message.setDelayTimeSec(value); break;
            case "ms": message.setDelayTimeMs(value); break;
            default: message.setDeliverTimeMs(value);
        }
        long begin = System.currentTimeMillis();
        SendResult result = producer.send(message);
        Map<String, Object> found = new TreeMap<>();
        found.put("begin", begin);
        found.put("status", result.getSendStatus().name());
        found.put("id", result.getMsgId());
        found.put("queueId", result.getMessageQueue().getQueueId());
        found.put("handle", result.getRecallHandle());
        return found;
    }
}
