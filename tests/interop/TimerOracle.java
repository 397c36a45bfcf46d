import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.producer.RecallMessageHandle;

/**
 * Java's producer of messages with a time of their own, which it can take back (5.3 and later).
 *
 * <p>Lines of words as in {@code Oracle.java}. An answer is {@code {"value": ...}} or {@code
 * {"error": "..."}}.
 */
public final class TimerOracle {
    private static final Map<String, DefaultMQProducer> PRODUCERS = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        System.setOut(System.err); // loggers write to stdout
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        List<String> lines = new ArrayList<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (!line.equals(".")) {
                lines.add(line);
                continue;
            }
            for (String request : lines) {
                out.println(answer(List.of(request.split(" ")).iterator()));
            }
            out.flush();
            lines.clear();
        }
        Runtime.getRuntime().halt(0);
    }

    private static String answer(Iterator<String> words) {
        try {
            return JSON.toJSONString(Collections.singletonMap("value", run(words.next(), words)));
        } catch (MQBrokerException e) {
            return JSON.toJSONString(Collections.singletonMap("error",
                "code " + e.getResponseCode() + ": " + e.getErrorMessage()));
        } catch (Throwable e) {
            return JSON.toJSONString(Collections.singletonMap("error",
                e.getClass().getSimpleName() + ": " + e.getMessage()));
        }
    }

    private static Object run(String command, Iterator<String> words) throws Exception {
        switch (command) {
            case "send": return send(producer(text(words)), text(words), text(words), text(words),
                Long.parseLong(words.next()));
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

    /** Sends a message that waits: kind is "sec", "ms" or "at". */
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

    private static String text(Iterator<String> words) {
        String hex = words.next();
        byte[] bytes = new byte[hex.equals("-") ? 0 : hex.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return new String(bytes, StandardCharsets.UTF_16BE);
    }
}
