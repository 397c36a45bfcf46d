import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.parser.Feature;
import com.alibaba.fastjson.serializer.SerializerFeature;
import com.alibaba.fastjson.util.TypeUtils;
import java.beans.Introspector;
import java.beans.PropertyDescriptor;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * RocketMQ's own clients, controlled over stdin and stdout by java_cluster.py.
 *
 * <p>A request is a line {@code {"id": 1, "do": "send", "on": "handle", ...}}. Its answer is {@code
 * {"id": 1, "value": ...}} or {@code {"id": 1, "error": {...}}}; requests run concurrently, so
 * answers come in any order. A push consumer writes {@code {"on": "handle", "messages": [...]}}.
 * Bodies are base64. A queue is {@code {"topic", "brokerName", "queueId"}}. Works with 4.5 to 5.5.
 */
public final class ClientOracle {
    /** A client that a request named. */
    interface Handle {
        Object run(String what, JSONObject request) throws Exception;

        void close();
    }

    private static final ConcurrentMap<String, Handle> HANDLES = new ConcurrentHashMap<>();
    private static final Base64.Encoder BASE64 = Base64.getEncoder();
    private static PrintStream out;

    public static void main(String[] arguments) throws Exception {
        out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err); // loggers write to stdout
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ExecutorService threads = Executors.newCachedThreadPool();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String request = line;
            threads.execute(() -> answer(JSON.parseObject(request, Feature.OrderedField)));
        }
        Runtime.getRuntime().halt(0); // the test has ended: do not unregister
    }

    private static void answer(JSONObject request) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", request.get("id"));
        try {
            answer.put("value", plain(run(request)));
        } catch (Throwable e) {
            answer.put("error", error(e));
        }
        print(answer);
    }

    static void print(Map<String, Object> line) {
        String text = JSON.toJSONString(line, SerializerFeature.WriteMapNullValue,
            SerializerFeature.DisableCircularReferenceDetect);
        synchronized (out) {
            out.println(text);
            out.flush();
        }
    }

    private static Object run(JSONObject request) throws Exception {
        String what = request.getString("do");
        String on = request.getString("on");
        switch (what) {
            case "hello": return System.getProperty("java.version");
            case "encode": return FrameOracle.encode(request);
            case "decode": return FrameOracle.decode(request);
            case "mqadmin": return mqadmin(request.getJSONArray("arguments"));
            case "new producer": return open(on, new Producer(request));
            case "new push": return open(on, new Push(request));
            case "new pull": return open(on, new Pull(request));
            case "new admin": return open(on, new Admin(request));
            case "new lite": return open(on, (Handle) Class.forName("LitePullOracle")
                .getConstructor(JSONObject.class).newInstance(request));
            case "close":
                HANDLES.remove(on).close();
                return null;
            default: return HANDLES.get(on).run(what, request);
        }
    }

    private static Object open(String name, Handle handle) {
        HANDLES.put(name, handle);
        return null;
    }

    private static final boolean HAS_TRACE = Boolean.getBoolean("reput.trace");

    // --- producer -------------------------------------------------------------------------------

    private static final class Producer implements Handle {
        private final DefaultMQProducer producer;

        Producer(JSONObject request) throws Exception {
            producer = new DefaultMQProducer(request.getString("group"), Signing.HOOK, HAS_TRACE, null);
            configure(producer, request);
            producer.start();
        }

        @Override
        public Object run(String what, JSONObject request) throws Exception {
            if (what.equals("queues")) {
                return producer.fetchPublishMessageQueues(request.getString("topic"));
            }
            List<Message> messages = new ArrayList<>();
            for (Object one : request.getJSONArray("messages")) {
                messages.add(message((JSONObject) one));
            }
            long timeout = request.getLongValue("timeoutMillis");
            MessageQueue queue = queue(request.getJSONObject("queue"));
            switch (what) {
                case "sync": return each(messages, one -> queue == null
                    ? producer.send(one, timeout) : producer.send(one, queue, timeout));
                case "oneway": return each(messages, one -> {
                    if (queue == null) {
                        producer.sendOneway(one);
                    } else {
                        producer.sendOneway(one, queue);
                    }
                    return null;
                });
                case "async": return async(messages, queue, timeout);
                case "batch":
                    return Collections.singletonList(each(messages.subList(0, 1),
                        first -> queue == null ? producer.send(messages, timeout)
                            : producer.send(messages, queue, timeout)).get(0));
                case "ordered": // the queue is chosen by the message's sharding key, as in examples
                    JSONArray keys = request.getJSONArray("shardingKeys");
                    List<Object> found = new ArrayList<>();
                    for (int i = 0; i < messages.size(); i++) {
                        String key = keys.getString(i);
                        found.addAll(each(messages.subList(i, i + 1), one -> producer.send(one,
                            (queues, m, argument) -> queues.get(
                                (argument.hashCode() & Integer.MAX_VALUE) % queues.size()),
                            key, timeout)));
                    }
                    return found;
                default: throw new IllegalArgumentException("a producer cannot " + what);
            }
        }

        private interface Sending {
            SendResult send(Message message) throws Exception;
        }

        private static List<Object> each(List<Message> messages, Sending sending) {
            List<Object> found = new ArrayList<>();
            for (Message one : messages) {
                try {
                    found.add(sent(sending.send(one)));
                } catch (Exception e) {
                    found.add(Collections.singletonMap("error", error(e)));
                }
            }
            return found;
        }

        private Object async(List<Message> messages, MessageQueue queue, long timeout)
            throws Exception {
            Object[] found = new Object[messages.size()];
            CountDownLatch left = new CountDownLatch(found.length);
            for (int i = 0; i < found.length; i++) {
                int at = i;
                SendCallback callback = new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        found[at] = sent(result);
                        left.countDown();
                    }

                    @Override
                    public void onException(Throwable e) {
                        found[at] = Collections.singletonMap("error", error(e));
                        left.countDown();
                    }
                };
                if (queue == null) {
                    producer.send(messages.get(i), callback, timeout);
                } else {
                    producer.send(messages.get(i), queue, callback, timeout);
                }
            }
            if (!left.await(timeout + 30_000, TimeUnit.MILLISECONDS)) {
                throw new IllegalStateException(left.getCount() + " callbacks never came");
            }
            return Arrays.asList(found);
        }

        @Override
        public void close() {
            producer.shutdown();
        }
    }

    private static Message message(JSONObject request) {
        Message message = new Message(request.getString("topic"), body(request));
        JSONObject properties = request.getJSONObject("properties");
        if (properties != null) {
            for (String name : properties.keySet()) {
                message.putUserProperty(name, properties.getString(name));
            }
        }
        if (request.get("tags") != null) {
            message.setTags(request.getString("tags"));
        }
        if (request.get("keys") != null) {
            message.setKeys(request.getString("keys"));
        }
        if (request.get("delayLevel") != null) {
            message.setDelayTimeLevel(request.getIntValue("delayLevel"));
        }
        if (request.get("wait") != null) {
            message.setWaitStoreMsgOK(request.getBooleanValue("wait"));
        }
        message.setFlag(request.getIntValue("flag"));
        return message;
    }

    private static byte[] body(JSONObject request) {
        return Base64.getDecoder().decode(request.getString("body"));
    }

    private static Map<String, Object> sent(SendResult result) {
        if (result == null) {
            return null; // one-way
        }
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("status", result.getSendStatus().name());
        found.put("msgId", result.getMsgId());
        found.put("offsetMsgId", result.getOffsetMsgId());
        found.put("queue", plain(result.getMessageQueue()));
        found.put("queueOffset", result.getQueueOffset());
        found.put("transactionId", result.getTransactionId());
        found.put("regionId", result.getRegionId());
        return found;
    }

    // --- consumers ------------------------------------------------------------------------------

    private static final class Push implements Handle {
        private final DefaultMQPushConsumer consumer;

        Push(JSONObject request) throws Exception {
            String on = request.getString("on");
            int laters = request.getIntValue("laters");
            consumer = new DefaultMQPushConsumer(request.getString("group"), Signing.HOOK,
                new AllocateMessageQueueAveragely(), HAS_TRACE, null);
            configure(consumer, request);
            for (Object one : request.getJSONArray("subscriptions")) {
                JSONObject subscription = (JSONObject) one;
                String topic = subscription.getString("topic");
                String expression = subscription.getString("expression");
                if ("SQL92".equals(subscription.getString("type"))) {
                    consumer.subscribe(topic, MessageSelector.bySql(expression));
                } else {
                    consumer.subscribe(topic, expression);
                }
            }
            if (request.getBooleanValue("orderly")) {
                consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                    got(on, messages, context.getMessageQueue());
                    return messages.get(0).getReconsumeTimes() < laters
                        ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
                        : ConsumeOrderlyStatus.SUCCESS;
                });
            } else {
                consumer.registerMessageListener(
                    (MessageListenerConcurrently) (messages, context) -> {
                        got(on, messages, context.getMessageQueue());
                        return messages.get(0).getReconsumeTimes() < laters
                            ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                            : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                    });
            }
            consumer.start();
        }

        private static void got(String on, List<MessageExt> messages, MessageQueue queue) {
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("on", on);
            line.put("queue", plain(queue));
            line.put("messages", messages(messages));
            print(line);
        }

        @Override
        public Object run(String what, JSONObject request) throws Exception {
            switch (what) {
                case "suspend": consumer.suspend(); return null;
                case "resume": consumer.resume(); return null;
                case "assigned": // the queues from rebalancing
                    return new ArrayList<>(consumer.getDefaultMQPushConsumerImpl()
                        .getRebalanceImpl().getProcessQueueTable().keySet());
                case "persist":
                    consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
                    return null;
                default: throw new IllegalArgumentException("a push consumer cannot " + what);
            }
        }

        @Override
        public void close() {
            consumer.shutdown();
        }
    }

    @SuppressWarnings("deprecation")
    private static final class Pull implements Handle {
        private final DefaultMQPullConsumer consumer;

        Pull(JSONObject request) throws Exception {
            consumer = new DefaultMQPullConsumer(request.getString("group"), Signing.HOOK);
            configure(consumer, request);
            consumer.start();
        }

        @Override
        public Object run(String what, JSONObject request) throws Exception {
            MessageQueue queue = queue(request.getJSONObject("queue"));
            switch (what) {
                case "queues":
                    return consumer.fetchSubscribeMessageQueues(request.getString("topic"));
                case "min": return consumer.minOffset(queue);
                case "max": return consumer.maxOffset(queue);
                case "search": return consumer.searchOffset(queue, request.getLongValue("time"));
                case "committed":
                    return consumer.fetchConsumeOffset(queue, request.getBooleanValue("fromStore"));
                case "commit":
                    consumer.updateConsumeOffset(queue, request.getLongValue("offset"));
                    consumer.getOffsetStore().persist(queue);
                    return null;
                case "pull":
                case "pullBlocking":
                    String expression = request.getString("expression");
                    long offset = request.getLongValue("offset");
                    int max = request.getIntValue("max");
                    PullResult result = what.equals("pull")
                        ? consumer.pull(queue, expression, offset, max)
                        : consumer.pullBlockIfNotFound(queue, expression, offset, max);
                    Map<String, Object> found = new LinkedHashMap<>();
                    found.put("status", result.getPullStatus().name());
                    found.put("nextOffset", result.getNextBeginOffset());
                    found.put("minOffset", result.getMinOffset());
                    found.put("maxOffset", result.getMaxOffset());
                    found.put("messages", messages(result.getMsgFoundList()));
                    return found;
                case "view": return messages(Collections.singletonList(consumer.viewMessage(
                    request.getString("topic"), request.getString("msgId")))).get(0);
                case "query": return messages(consumer.queryMessage(request.getString("topic"),
                    request.getString("key"), request.getIntValue("max"),
                    request.getLongValue("begin"), request.getLongValue("end"))
                    .getMessageList());
                case "sendBack":
                    MessageExt message = consumer.pull(queue, "*", request.getLongValue("offset"), 1)
                        .getMsgFoundList().get(0);
                    consumer.sendMessageBack(message, request.getIntValue("delayLevel"));
                    return null;
                default: throw new IllegalArgumentException("a pull consumer cannot " + what);
            }
        }

        @Override
        public void close() {
            consumer.shutdown();
        }
    }

    static List<Object> messages(List<MessageExt> messages) {
        List<Object> found = new ArrayList<>();
        for (MessageExt one : messages == null ? Collections.<MessageExt>emptyList() : messages) {
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("topic", one.getTopic());
            line.put("queueId", one.getQueueId());
            line.put("queueOffset", one.getQueueOffset());
            line.put("physicalOffset", one.getCommitLogOffset());
            line.put("storeSize", one.getStoreSize());
            line.put("msgId", one.getMsgId());
            line.put("offsetMsgId", one instanceof MessageClientExt
                ? ((MessageClientExt) one).getOffsetMsgId() : one.getMsgId());
            line.put("body", BASE64.encodeToString(one.getBody()));
            line.put("tags", one.getTags());
            line.put("keys", one.getKeys());
            line.put("properties", one.getProperties());
            line.put("flag", one.getFlag());
            line.put("sysFlag", one.getSysFlag());
            line.put("reconsumeTimes", one.getReconsumeTimes());
            line.put("bornTimestamp", one.getBornTimestamp());
            line.put("bornHost", String.valueOf(one.getBornHost()).substring(1));
            line.put("storeTimestamp", one.getStoreTimestamp());
            line.put("storeHost", String.valueOf(one.getStoreHost()).substring(1));
            line.put("preparedTransactionOffset", one.getPreparedTransactionOffset());
            found.add(line);
        }
        return found;
    }

    // --- administration -------------------------------------------------------------------------

    /** Any public method of DefaultMQAdminExt, by name. */
    private static final class Admin implements Handle {
        private final Object admin;

        Admin(JSONObject request) throws Exception {
            admin = Class.forName("org.apache.rocketmq.tools.admin.DefaultMQAdminExt")
                .getConstructor(RPCHook.class).newInstance(Signing.HOOK);
            configure(admin, request);
            admin.getClass().getMethod("start").invoke(admin);
        }

        @Override
        public Object run(String what, JSONObject request) throws Exception {
            String name = request.getString("method");
            JSONArray arguments = request.getJSONArray("arguments");
            Exception last = new NoSuchMethodException(name + " with " + arguments.size());
            for (Method method : admin.getClass().getMethods()) {
                Class<?>[] types = method.getParameterTypes();
                if (!method.getName().equals(name) || types.length != arguments.size()) {
                    continue;
                }
                Object[] values = new Object[types.length];
                try {
                    for (int i = 0; i < types.length; i++) {
                        values[i] = TypeUtils.cast(arguments.get(i),
                            method.getGenericParameterTypes()[i], null);
                    }
                } catch (RuntimeException e) {
                    last = e; // another method of that name
                    continue;
                }
                try {
                    return method.invoke(admin, values);
                } catch (InvocationTargetException e) {
                    throw e.getCause() instanceof Exception ? (Exception) e.getCause() : e;
                }
            }
            throw last;
        }

        @Override
        public void close() {
            try {
                admin.getClass().getMethod("shutdown").invoke(admin);
            } catch (ReflectiveOperationException e) {
                throw new IllegalStateException(e);
            }
        }
    }

    /** Returns the output of the command line tool. */
    private static synchronized Object mqadmin(JSONArray words) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream before = System.out;
        PrintStream errors = System.err;
        PrintStream both = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(both);
        System.setErr(both);
        try {
            Class<?> tools = Class.forName("org.apache.rocketmq.tools.command.MQAdminStartup");
            // Commands keep the clients of earlier runs, which are closed: clear these lists.
            for (Field field : tools.getDeclaredFields()) {
                if (List.class.isAssignableFrom(field.getType())) {
                    field.setAccessible(true);
                    ((List<?>) field.get(null)).clear();
                }
            }
            tools.getMethod("main", String[].class)
                .invoke(null, (Object) words.toArray(new String[0]));
        } finally {
            System.setOut(before);
            System.setErr(errors);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }

    // --- values ---------------------------------------------------------------------------------

    /** Calls a setter for each setting; the value is converted to the type of its argument. */
    static void configure(Object client, JSONObject request) throws Exception {
        JSONObject settings = request.getJSONObject("settings");
        for (String name : settings.keySet()) {
            String setter = "set" + Character.toUpperCase(name.charAt(0)) + name.substring(1);
            boolean isKnown = false;
            for (Method method : client.getClass().getMethods()) {
                if (method.getName().equals(setter) && method.getParameterCount() == 1) {
                    Object value = TypeUtils.cast(settings.get(name),
                        method.getGenericParameterTypes()[0], null);
                    method.invoke(client, value);
                    isKnown = true;
                    break;
                }
            }
            if (!isKnown) {
                throw new IllegalArgumentException(client.getClass() + " has no " + name);
            }
        }
    }

    static MessageQueue queue(JSONObject request) {
        return request == null ? null : new MessageQueue(request.getString("topic"),
            request.getString("brokerName"), request.getIntValue("queueId"));
    }

    private static Map<String, Object> error(Throwable thrown) {
        Throwable e = thrown;
        while ((e instanceof InvocationTargetException) && e.getCause() != null) {
            e = e.getCause();
        }
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("type", e.getClass().getSimpleName());
        Integer code = null;
        if (e instanceof MQBrokerException) {
            code = ((MQBrokerException) e).getResponseCode();
        } else if (e instanceof MQClientException) {
            code = ((MQClientException) e).getResponseCode();
        }
        found.put("code", code);
        found.put("text", String.valueOf(e.getMessage()));
        StringWriter trace = new StringWriter();
        e.printStackTrace(new PrintWriter(trace));
        found.put("trace", trace.toString());
        return found;
    }

    /** Converts to maps, lists, texts and numbers; a queue as a key is TOPIC@BROKER@ID. */
    static Object plain(Object value) {
        if (value == null || value instanceof String || value instanceof Number
            || value instanceof Boolean) {
            return value;
        }
        if (value instanceof Enum) {
            return ((Enum<?>) value).name();
        }
        if (value instanceof byte[]) {
            return BASE64.encodeToString((byte[]) value);
        }
        if (value instanceof Map) {
            Map<String, Object> found = new LinkedHashMap<>();
            ((Map<?, ?>) value).forEach((key, one) -> found.put(text(key), plain(one)));
            return found;
        }
        if (value instanceof Collection) {
            List<Object> found = new ArrayList<>();
            ((Collection<?>) value).forEach(one -> found.add(plain(one)));
            return found;
        }
        if (!value.getClass().getName().startsWith("org.apache.rocketmq.")) {
            return value.toString();
        }
        Map<String, Object> found = new LinkedHashMap<>();
        try {
            for (PropertyDescriptor one
                : Introspector.getBeanInfo(value.getClass(), Object.class).getPropertyDescriptors()) {
                if (one.getReadMethod() != null) {
                    found.put(one.getName(), plain(one.getReadMethod().invoke(value)));
                }
            }
        } catch (ReflectiveOperationException | java.beans.IntrospectionException e) {
            throw new IllegalStateException(e);
        }
        return found;
    }

    private static String text(Object key) {
        if (key instanceof MessageQueue) {
            MessageQueue queue = (MessageQueue) key;
            return queue.getTopic() + "@" + queue.getBrokerName() + "@" + queue.getQueueId();
        }
        return String.valueOf(key instanceof Enum ? ((Enum<?>) key).name() : key);
    }
}
