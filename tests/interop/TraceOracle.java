import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.trace.TraceTransferBean;
import org.apache.rocketmq.client.trace.TraceType;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageType;

/** Java's traces: clients that write them, and the classes that encode and decode them. */
public final class TraceOracle extends WordOracle {
    private static int clients;

    public static void main(String[] arguments) throws Exception {
        new TraceOracle().serve();
    }

    @Override
    Object run(String command, Iterator<String> words) throws Exception {
        switch (command) {
            case "produce": return produce(text(words), text(words), text(words), text(words),
                text(words), text(words));
            case "consume": return consume(text(words), text(words), text(words));
            case "lines": return lines(text(words), text(words), text(words));
            case "read": return read(text(words));
            default: throw new IllegalArgumentException("no command " + command);
        }
    }

    /** Makes a client with traces on: by its constructor in 4.x, by its settings in 5.x. */
    private static <T extends ClientConfig> T traced(Class<T> kind, String group)
        throws Exception {
        try {
            return kind.getConstructor(String.class, boolean.class).newInstance(group, true);
        } catch (NoSuchMethodException e) {
            T client = kind.getConstructor(String.class).newInstance(group);
            ClientConfig.class.getMethod("setEnableTrace", boolean.class).invoke(client, true);
            return client;
        }
    }

    /**
     * Sends a message with traces on, and returns its id. The producer keeps running, because a
     * producer may lose pending traces when it is shut down.
     */
    private static Object produce(String namesrv, String group, String topic, String tags,
        String keys, String body) throws Exception {
        DefaultMQProducer producer = traced(DefaultMQProducer.class, group);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("traced-" + ++clients);
        producer.start();
        Message one = new Message(topic, tags, keys, body.getBytes(StandardCharsets.UTF_8));
        return producer.send(one, 10_000).getMsgId();
    }

    /** Consumes one message with traces on. */
    private static Object consume(String namesrv, String group, String topic) throws Exception {
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = traced(DefaultMQPushConsumer.class, group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("traced-" + ++clients);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            done.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return done.await(30, TimeUnit.SECONDS);
    }

    /** The line of each type of trace, of a message with these marks ("" is none). */
    private static Object lines(String id, String tags, String keys) {
        Map<String, String> found = new TreeMap<>();
        for (TraceType type : TraceType.values()) {
            TraceBean bean = new TraceBean();
            bean.setTopic("T");
            bean.setMsgId(id);
            bean.setTags(tags.isEmpty() ? null : tags);
            bean.setKeys(keys.isEmpty() ? null : keys);
            bean.setStoreHost("127.0.0.1:10911");
            bean.setBodyLength(5);
            bean.setMsgType(MessageType.Delay_Msg);
            bean.setOffsetMsgId("7F");
            bean.setRetryTimes(2);
            bean.setTransactionId("X");
            bean.setTransactionState(LocalTransactionState.ROLLBACK_MESSAGE);
            bean.setFromTransactionCheck(true);
            TraceContext context = new TraceContext();
            context.setTraceType(type);
            context.setTimeStamp(1_700_000_000_000L);
            context.setRegionId(type == TraceType.SubBefore ? null : "R");
            context.setGroupName("g");
            context.setCostTime(3);
            context.setSuccess(false);
            context.setRequestId("C");
            context.setContextCode(2);
            context.setAccessChannel(AccessChannel.LOCAL);
            context.setTraceBeans(new ArrayList<>(Collections.singletonList(bean)));
            TraceTransferBean encoded = TraceDataEncoder.encoderFromContextBean(context);
            found.put(type.name(), encoded.getTransData());
            found.put(type.name() + " keys", String.join(" ", encoded.getTransKey()));
        }
        return found;
    }

    /** The traces that Java reads from the body of a trace message. */
    private static Object read(String data) {
        List<Map<String, Object>> found = new ArrayList<>();
        for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(data)) {
            TraceBean bean = context.getTraceBeans().get(0);
            Map<String, Object> one = new TreeMap<>();
            one.put("type", context.getTraceType().name());
            one.put("time", context.getTimeStamp());
            one.put("group", context.getGroupName());
            one.put("success", context.isSuccess());
            one.put("code", context.getContextCode());
            one.put("id", bean.getMsgId());
            one.put("keys", bean.getKeys());
            found.add(one);
        }
        return found;
    }
}
