import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.parser.Feature;
import com.alibaba.fastjson.serializer.SerializerFeature;
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.Inet4Address;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
// MessageExtBrokerInner is in the first package in 5.x, and in the second one in 4.x.
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens a folder with RocketMQ's own DefaultMessageStore, for the tests.
 *
 * <p>{@code StoreOracle COMMAND FOLDER} reads one JSON object from the first line of its input, the
 * request, does its work, and writes JSON lines, each with a {@code kind}; the last one is {@code
 * end}, or {@code error}. Bodies are hexadecimal. Works with 4.5 to 5.5.
 *
 * <pre>
 * open       returns all that a client could read: queues, messages, lookups by key and by time
 * open-time  returns the time that opening the store takes
 * write      puts the messages of the further lines
 * bench      puts many messages of one size, from one thread
 * </pre>
 *
 * Members of every request: {@code config}, settings of the store or the broker; {@code crash},
 * whether the process ends as if killed.
 *
 * <p>There is no broker around the store. This has two consequences: in 4.x the store itself would
 * deliver delayed messages, which is disabled here, so that reading changes nothing; in 5.x the
 * broker, which is missing here, maps a DELAY property to the schedule topic and checks topics.
 */
public final class StoreOracle {
    private static final String TOPIC = "Bench";
    private static final String GROUP = "reput";
    private static final int KEY_MATCHES_MAX = 64; // as maxMsgsNumBatch

    private static PrintStream out;

    public static void main(String[] arguments) {
        out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        System.setOut(System.err); // loggers write to stdout
        int status = 0;
        try {
            logWarnings();
            BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
            new StoreOracle(arguments[1], JSON.parseObject(in.readLine())).run(arguments[0], in);
            print("end");
        } catch (Throwable e) {
            StringWriter trace = new StringWriter();
            e.printStackTrace(new PrintWriter(trace));
            print("error", "error", trace.toString());
            status = 1;
        }
        out.flush();
        System.err.flush();
        Runtime.getRuntime().halt(status); // RocketMQ leaves threads running, even when shut down
    }

    /** To stderr, from 4.x's own logging; 5.x finds rmq.logback.xml next to this class. */
    private static void logWarnings() throws Exception {
        String logging = "org.apache.rocketmq.logging.inner.";
        Class<?> builders;
        try {
            builders = Class.forName(logging + "LoggingBuilder");
        } catch (ClassNotFoundException e) {
            return;
        }
        Class<?> level = Class.forName(logging + "Level");
        Class<?> appender = Class.forName(logging + "Appender");
        Class<?> layout = Class.forName(logging + "Layout");
        Object lines = builders.getMethod("newLayoutBuilder").invoke(null);
        lines = lines.getClass().getMethod("withSimpleLayout").invoke(lines);
        lines = lines.getClass().getMethod("build").invoke(lines);
        Object console = builders.getMethod("newAppenderBuilder").invoke(null);
        console.getClass().getMethod("withConsoleAppender", String.class)
            .invoke(console, "System.err");
        console.getClass().getMethod("withLayout", layout).invoke(console, lines);
        console = console.getClass().getMethod("build").invoke(console);
        Object root = Class.forName(logging + "Logger").getMethod("getRootLogger").invoke(null);
        root.getClass().getMethod("setLevel", level).invoke(root, level.getField("WARN").get(null));
        root.getClass().getMethod("addAppender", appender).invoke(root, console);
    }

    private final JSONObject request;
    private final DefaultMessageStore store;
    private final Map<String, Object> opened = new LinkedHashMap<>();

    private StoreOracle(String folder, JSONObject request) throws Exception {
        this.request = request;
        this.store = construct(folder, request.getJSONObject("config"));
    }

    private void run(String command, BufferedReader in) throws Exception {
        boolean isOpen = open();
        print("store", opened);
        out.flush();
        if (!isOpen) {
            return;
        }
        switch (command) {
            case "open": look(); break;
            case "open-time": break;
            case "write": write(in); break;
            case "bench": bench(); break;
            default: throw new IllegalArgumentException("no command " + command);
        }
        if (!request.getBooleanValue("crash")) {
            close();
        }
    }

    // --- opening and closing ---------------------------------------------

    private boolean open() throws Exception {
        long start = System.nanoTime();
        boolean isLoaded = store.load();
        opened.put("loaded", isLoaded);
        opened.put("loadMillis", millisSince(start));
        if (isLoaded) {
            start = System.nanoTime();
            setDelivering(true);
            store.start();
            awaitDispatch(store.getMaxPhyOffset());
            opened.put("startMillis", millisSince(start));
            opened.put("minPhysicalOffset", store.getMinPhyOffset());
            opened.put("maxPhysicalOffset", store.getMaxPhyOffset());
        }
        opened.put("cpuMillis", cpuNanos() / 1e6);
        return isLoaded;
    }

    private void close() throws Exception {
        awaitDispatch(store.getMaxPhyOffset());
        setDelivering(false);
        // The shutdown starts with a sleep of 1 s (4.x) or 3 s (5.x), which is not needed, because
        // no put is running. An interrupted thread does not sleep, but logs a warning.
        System.err.println("closing");
        Thread.currentThread().interrupt();
        store.shutdown();
        Thread.interrupted();
    }

    /**
     * Waits until the log reaches an offset, which takes a commit with a transient store pool, and
     * until dispatch has caught up.
     */
    private void awaitDispatch(long physicalOffset) throws Exception {
        while (store.getMaxPhyOffset() < physicalOffset || store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    /**
     * 4.x: marks the delivery of delayed messages as started, so that the store does not start it;
     * or as stopped, so that the store does not stop it. In 5.x the broker delivers them.
     */
    private void setDelivering(boolean isDelivering) throws Exception {
        Method getter;
        try {
            getter = DefaultMessageStore.class.getMethod("getScheduleMessageService");
        } catch (NoSuchMethodException e) {
            return;
        }
        Object service = getter.invoke(store);
        Field started = service.getClass().getDeclaredField("started");
        started.setAccessible(true);
        ((AtomicBoolean) started.get(service)).set(isDelivering);
    }

    private static DefaultMessageStore construct(String folder, JSONObject settings)
        throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        BrokerConfig brokerConfig = new BrokerConfig();
        config.setStorePathRootDir(folder);
        config.setStorePathCommitLog(folder + File.separator + "commitlog");
        config.setHaListenPort(0); // any
        for (String name : settings.keySet()) {
            // Not |: both have some of the settings.
            boolean isSet = set(config, name, settings.getString(name));
            if (!(set(brokerConfig, name, settings.getString(name)) || isSet)) {
                throw new IllegalArgumentException("no setting " + name);
            }
        }
        MessageArrivingListener nobody =
            (topic, queue, offset, tags, time, bits, properties) -> { };
        Object[] four = {config, brokerStatsManager(), nobody, brokerConfig};
        Constructor<?> constructor = DefaultMessageStore.class.getConstructors()[0];
        if (constructor.getParameterCount() == four.length) {
            return (DefaultMessageStore) constructor.newInstance(four);
        }
        return (DefaultMessageStore) constructor.newInstance(
            config, four[1], nobody, brokerConfig, topics(folder));
    }

    private static boolean set(Object config, String name, String value) throws Exception {
        String setter = "set" + Character.toUpperCase(name.charAt(0)) + name.substring(1);
        for (Method method : config.getClass().getMethods()) {
            if (method.getName().equals(setter)) {
                Class<?> type = method.getParameterTypes()[0];
                if (type.isPrimitive() || type == String.class) {
                    method.invoke(config, JSON.parseObject(JSON.toJSONString(value), type));
                    return true;
                }
            }
        }
        return false;
    }

    private static BrokerStatsManager brokerStatsManager() throws Exception {
        try {
            return BrokerStatsManager.class.getConstructor(String.class, boolean.class)
                .newInstance("DefaultCluster", false);
        } catch (NoSuchMethodException e) { // 4.5
            return BrokerStatsManager.class.getConstructor(String.class)
                .newInstance("DefaultCluster");
        }
    }

    /** The broker's topic configurations, which define the batch queues. */
    private static ConcurrentMap<String, TopicConfig> topics(String folder) throws Exception {
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        File file = new File(folder, "config/topics.json");
        if (file.exists()) {
            JSONObject table = JSON.parseObject(Files.readString(file.toPath()))
                .getJSONObject("topicConfigTable");
            for (String topic : table.keySet()) {
                topics.put(topic, table.getObject(topic, TopicConfig.class));
            }
        }
        return topics;
    }

    // --- open ------------------------------------------------------------

    private void look() throws Exception {
        for (Map.Entry<String, ?> topic : store.getConsumeQueueTable().entrySet()) {
            for (Object queueId : ((Map<?, ?>) topic.getValue()).keySet()) {
                lookAtQueue(topic.getKey(), (Integer) queueId);
            }
        }
        for (Object item : request.getJSONArray("keys")) {
            findKey((List<?>) item);
        }
        for (Object item : request.getJSONArray("times")) {
            List<?> triple = (List<?>) item;
            long timestamp = ((Number) triple.get(2)).longValue();
            findTime((String) triple.get(0), (Integer) triple.get(1), timestamp);
        }
    }

    private void lookAtQueue(String topic, int queueId) throws Exception {
        long min = store.getMinOffsetInQueue(topic, queueId);
        long max = store.getMaxOffsetInQueue(topic, queueId);
        print("queue", "topic", topic, "queueId", queueId, "min", min, "max", max);
        long next = min;
        while (next < max) {
            long asked = next;
            // One message per call, because 4.x returns only the place of the first one.
            GetMessageResult result = store.getMessage(GROUP, topic, queueId, asked, 1, null);
            for (ByteBuffer buffer : result.getMessageBufferList()) {
                Map<String, Object> fields = new LinkedHashMap<>();
                fields.put("at", asked);
                fields.put("queue", List.of(topic, queueId));
                fields.putAll(fields(buffer));
                print("message", fields);
            }
            if (result.getMessageCount() == 0) {
                print("hole", "queue", List.of(topic, queueId), "at", asked,
                    "status", result.getStatus().name());
            }
            next = Math.max(result.getNextBeginOffset(), asked + 1);
            result.release();
        }
    }

    /** Topic and key; optionally begin, end and the maximum number of messages. */
    private void findKey(List<?> asked) {
        boolean isBounded = asked.size() > 2;
        QueryMessageResult result = store.queryMessage(
            (String) asked.get(0),
            (String) asked.get(1),
            isBounded ? ((Number) asked.get(4)).intValue() : KEY_MATCHES_MAX,
            isBounded ? ((Number) asked.get(2)).longValue() : 0,
            isBounded ? ((Number) asked.get(3)).longValue() : Long.MAX_VALUE);
        List<Long> found = new ArrayList<>();
        for (ByteBuffer buffer : result.getMessageBufferList()) {
            found.add(MessageDecoder.decode(buffer, false, false).getCommitLogOffset());
        }
        result.release();
        print("key", "physicalOffsets", found);
    }

    private void findTime(String topic, int queueId, long timestamp) throws Exception {
        long nearest = store.getOffsetInQueueByTime(topic, queueId, timestamp);
        print("time",
            "queueOffset", nearest,
            "lower", boundary("LOWER", topic, queueId, timestamp),
            "upper", boundary("UPPER", topic, queueId, timestamp));
    }

    /** The answer of a method that only 5.x has, or null. */
    private Object boundary(String name, String topic, int queueId, long timestamp)
        throws Exception {
        Class<?> type;
        try {
            type = Class.forName("org.apache.rocketmq.common.BoundaryType");
        } catch (ClassNotFoundException e) {
            return null;
        }
        return DefaultMessageStore.class
            .getMethod("getOffsetInQueueByTime", String.class, int.class, long.class, type)
            .invoke(store, topic, queueId, timestamp, type.getField(name).get(null));
    }

    private static Map<String, Object> fields(ByteBuffer record) {
        int size = record.getInt(record.position());
        MessageExt message = MessageDecoder.decode(record, true, false);
        if (message == null) {
            throw new IllegalStateException("MessageDecoder finds no message in " + record);
        }
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("topic", message.getTopic());
        fields.put("queueId", message.getQueueId());
        fields.put("queueOffset", message.getQueueOffset());
        fields.put("physicalOffset", message.getCommitLogOffset());
        fields.put("size", size);
        fields.put("messageId", message.getMsgId());
        fields.put("flag", message.getFlag());
        fields.put("sysFlag", message.getSysFlag());
        fields.put("bornTimestamp", message.getBornTimestamp());
        fields.put("bornHost", host(message.getBornHost()));
        fields.put("storeTimestamp", message.getStoreTimestamp());
        fields.put("storeHost", host(message.getStoreHost()));
        fields.put("reconsumeTimes", message.getReconsumeTimes());
        fields.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        fields.put("properties", message.getProperties());
        fields.put("body", hex(message.getBody()));
        return fields;
    }

    // --- write -----------------------------------------------------------

    private void write(BufferedReader in) throws Exception {
        List<Object[]> answers = new ArrayList<>();
        long end = 0;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            PutMessageResult result = put(JSON.parseObject(line, Feature.OrderedField));
            AppendMessageResult appended = result.getAppendMessageResult();
            String status = result.getPutMessageStatus().name();
            if (appended == null) {
                answers.add(new Object[] {"status", status});
                continue;
            }
            if (appended.isOk()) {
                end = appended.getWroteOffset() + appended.getWroteBytes();
            }
            answers.add(new Object[] {
                "status", status,
                "appendStatus", appended.getStatus().name(),
                "physicalOffset", appended.getWroteOffset(),
                "size", appended.getWroteBytes(),
                "queueOffset", appended.getLogicsOffset(),
                "storeTimestamp", appended.getStoreTimestamp(),
                "messageId", appended.getMsgId()});
        }
        awaitDispatch(end);
        for (Object[] answer : answers) {
            print("put", answer);
        }
    }

    private PutMessageResult put(JSONObject line) throws Exception {
        if (line.getBooleanValue("isBatch")) {
            MessageExtBatch batch = new MessageExtBatch();
            fill(batch, line);
            return store.putMessages(batch);
        }
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        fill(message, line);
        message.setPropertiesString(
            MessageDecoder.messageProperties2String(message.getProperties()));
        return store.putMessage(message);
    }

    private static void fill(MessageExt message, JSONObject line) throws Exception {
        message.setTopic(line.getString("topic"));
        message.setQueueId(line.getIntValue("queueId"));
        message.setBody(bytes(line.getString("body")));
        message.setFlag(line.getIntValue("flag"));
        message.setSysFlag(line.getIntValue("sysFlag"));
        message.setBornTimestamp(line.getLongValue("bornTimestamp"));
        message.setBornHost(address(line.getString("bornHost")));
        message.setStoreHost(address(line.getString("storeHost")));
        message.setReconsumeTimes(line.getIntValue("reconsumeTimes"));
        message.setPreparedTransactionOffset(line.getLongValue("preparedTransactionOffset"));
        // Properties are stored in the order of the request.
        Map<String, String> properties = new LinkedHashMap<>();
        JSONObject asked = line.getJSONObject("properties");
        for (String name : asked.keySet()) {
            properties.put(name, asked.getString(name));
        }
        MessageAccessor.setProperties(message, properties);
    }

    // --- bench -----------------------------------------------------------

    private void bench() throws Exception {
        byte[] body = new byte[request.getIntValue("bodyBytes")];
        int queues = request.getIntValue("queues");
        int warmUp = request.getIntValue("warmUp");
        int messages = request.getIntValue("messages");
        InetSocketAddress host = address("192.0.2.1:10911");
        Map<PutMessageStatus, Integer> statuses = new EnumMap<>(PutMessageStatus.class);
        long cpu = 0;
        long start = 0;
        long end = 0;
        for (int i = 0; i < warmUp + messages; i++) {
            if (i == warmUp) {
                awaitDispatch(end);
                cpu = cpuNanos();
                start = System.nanoTime();
            }
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic(TOPIC);
            message.setQueueId(i % queues);
            message.setBody(body);
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(host);
            message.setStoreHost(host);
            MessageAccessor.putProperty(message, "UNIQ_KEY", String.format("%032X", i));
            message.setKeys("key-" + i);
            message.setPropertiesString(
                MessageDecoder.messageProperties2String(message.getProperties()));
            PutMessageResult result = store.putMessage(message);
            if (i >= warmUp) {
                statuses.merge(result.getPutMessageStatus(), 1, Integer::sum);
            }
            if (result.isOk()) {
                AppendMessageResult appended = result.getAppendMessageResult();
                end = appended.getWroteOffset() + appended.getWroteBytes();
            }
        }
        double putMillis = millisSince(start);
        awaitDispatch(end);
        print("bench",
            "messages", messages,
            "putMillis", putMillis,
            "dispatchedMillis", millisSince(start),
            "cpuMillis", (cpuNanos() - cpu) / 1e6,
            "statuses", statuses);
    }

    // --- time, bytes, JSON -----------------------------------------------

    private static double millisSince(long nanos) {
        return (System.nanoTime() - nanos) / 1e6;
    }

    /** CPU time of all threads since the start of the process. */
    private static long cpuNanos() {
        return ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class).getProcessCpuTime();
    }

    private static InetSocketAddress address(String host) throws Exception {
        int colon = host.lastIndexOf(':');
        InetAddress address = InetAddress.getByName(host.substring(0, colon));
        return new InetSocketAddress(address, Integer.parseInt(host.substring(colon + 1)));
    }

    private static String host(SocketAddress socketAddress) {
        InetSocketAddress address = (InetSocketAddress) socketAddress;
        String text = address.getAddress().getHostAddress();
        boolean is4 = address.getAddress() instanceof Inet4Address;
        return (is4 ? text : "[" + text + "]") + ":" + address.getPort();
    }

    private static byte[] bytes(String hex) {
        byte[] data = new byte[hex.length() / 2];
        for (int i = 0; i < data.length; i++) {
            data[i] = (byte) (Character.digit(hex.charAt(2 * i), 16) << 4
                | Character.digit(hex.charAt(2 * i + 1), 16));
        }
        return data;
    }

    private static String hex(byte[] data) {
        StringBuilder text = new StringBuilder();
        for (byte b : data == null ? new byte[0] : data) {
            text.append(Character.forDigit(b >> 4 & 0xf, 16));
            text.append(Character.forDigit(b & 0xf, 16));
        }
        return text.toString();
    }

    private static void print(String kind, Object... pairs) {
        Map<String, Object> fields = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            fields.put((String) pairs[i], pairs[i + 1]);
        }
        print(kind, fields);
    }

    private static void print(String kind, Map<String, Object> fields) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("kind", kind);
        line.putAll(fields);
        out.println(JSON.toJSONString(line, SerializerFeature.BrowserCompatible,
            SerializerFeature.WriteMapNullValue, SerializerFeature.DisableCircularReferenceDetect));
    }
}
