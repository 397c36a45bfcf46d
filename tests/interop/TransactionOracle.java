import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Java's transaction producers, whose local transactions and checks return the message's states.
 *
 * <p>The property {@code local} is {@code commit}, {@code rollback}, {@code unknown} or {@code
 * throw}; {@code checks} has one such state per check, separated by commas; the last one repeats.
 */
public final class TransactionOracle extends WordOracle {
    /** A producer, and the checks that it received. */
    private static final class Running implements TransactionListener {
        private final TransactionMQProducer producer;
        private final List<Map<String, Object>> asked =
            Collections.synchronizedList(new ArrayList<>());

        Running(String namesrv, String group, int number) throws Exception {
            producer = new TransactionMQProducer(group, Signing.HOOK);
            producer.setNamesrvAddr(namesrv);
            producer.setInstanceName("transactions-" + number);
            producer.setPollNameServerInterval(200);
            producer.setHeartbeatBrokerInterval(500);
            producer.setTransactionListener(this);
            producer.start();
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return state(message.getUserProperty("local"));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
            line.put("topic", message.getTopic());
            line.put("queueId", message.getQueueId());
            line.put("transactionId", message.getTransactionId());
            line.put("times", message.getProperty("TRANSACTION_CHECK_TIMES"));
            line.put("bornTimestamp", message.getBornTimestamp());
            asked.add(line);
            String[] states = message.getUserProperty("checks").split(",");
            int times = Integer.parseInt(message.getProperty("TRANSACTION_CHECK_TIMES"));
            return state(states[Math.min(times, states.length) - 1]);
        }

        private static LocalTransactionState state(String word) {
            switch (word) {
                case "commit": return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback": return LocalTransactionState.ROLLBACK_MESSAGE;
                case "unknown": return LocalTransactionState.UNKNOW;
                default: throw new IllegalStateException("the message says " + word);
            }
        }
    }

    private static final Map<Integer, Running> RUNNING = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        new TransactionOracle().serve();
    }

    @Override
    Object run(String command, Iterator<String> words) throws Exception {
        switch (command) {
            case "start":
                int number = RUNNING.size() + 1;
                RUNNING.put(number, new Running(text(words), text(words), number));
                return number;
            case "send": return send(running(words), text(words), text(words), text(words),
                text(words), text(words));
            case "asked":
                List<Map<String, Object>> asked = running(words).asked;
                synchronized (asked) {
                    return new ArrayList<>(asked);
                }
            case "close":
                running(words).producer.shutdown();
                return "closed";
            default: throw new IllegalArgumentException("no command " + command);
        }
    }

    private static Running running(Iterator<String> words) {
        return RUNNING.get(number(words));
    }

    /** Sends a message and runs its local transaction; an immunity of "" is none. */
    private static Object send(Running running, String topic, String body, String local,
        String checks, String immunity) throws Exception {
        Message message = new Message(topic, "tag", "key-" + body,
            body.getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("local", local);
        message.putUserProperty("checks", checks);
        if (!immunity.isEmpty()) {
            message.putUserProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", immunity);
        }
        TransactionSendResult result = running.producer.sendMessageInTransaction(message, null);
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("status", result.getSendStatus().name());
        found.put("state", result.getLocalTransactionState().name());
        found.put("msgId", result.getMsgId());
        found.put("queueId", result.getMessageQueue().getQueueId());
        found.put("queueOffset", result.getQueueOffset());
        return found;
    }
}
