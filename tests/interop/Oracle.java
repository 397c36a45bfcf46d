import java.io.File;
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
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageId;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.index.IndexFile;

/**
 * Calls RocketMQ's own classes for the tests. Works with 4.5 to 5.5; classes that moved in between
 * are called by reflection.
 */
public final class Oracle extends WordOracle {
    private static final int CRC_PROPERTY_BYTES = 20;

    /** In 4.x the third argument of checkMessageAndReturnSize is readBody, in 5.x checkDupInfo. */
    private static final boolean IS_4 =
        Oracle.class.getResource("/org/apache/rocketmq/common/message/MessageVersion.class") == null;

    public static void main(String[] arguments) throws Exception {
        new Oracle().serve();
    }

    @Override
    Object run(String command, Iterator<String> words) throws Exception {
        switch (command) {
            case "decode": return decode(bytes(words));
            case "encode": return encode(words);
            case "encodeStored": return encodeStored(words);
            case "check": return check(text(words), bytes(words));
            case "unwrap": return unwrap(bytes(words));
            case "decompressed": return decompressed(bytes(words));
            case "encodeBatch": return encodeBatch(words);
            case "decodeBatch": return decodeBatch(bytes(words));
            case "decodeText": return new String(bytes(words), StandardCharsets.UTF_8);
            case "encodeText": return hex(text(words).getBytes(StandardCharsets.UTF_8));
            case "properties2string": return properties2string(properties(words));
            case "string2properties": return string2properties(bytes(words));
            case "hash": return text(words).hashCode();
            case "indexKeyHash": return indexFile().indexKeyHashMethod(text(words));
            case "tagsCode": return tagsCode(text(words));
            case "crc": return UtilAll.crc32(bytes(words));
            case "createMessageId": return createMessageId(words);
            case "decodeMessageId": return decodeMessageId(text(words));
            default: throw new IllegalArgumentException("no command " + command);
        }
    }

    // --- records ---------------------------------------------------------

    /** The fields of a record, with stored and uncompressed body; null if Java finds no record. */
    private static Object decode(byte[] data) {
        MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(data), true, false);
        if (message == null) {
            return null;
        }
        Map<String, Object> fields = fields(message);
        MessageExt unpacked = MessageDecoder.decode(ByteBuffer.wrap(data), true, true);
        fields.put("plainBody", unpacked == null ? null : body(unpacked));
        MessageExt client = MessageDecoder.clientDecode(ByteBuffer.wrap(data), false);
        fields.put("clientMessageId", client == null ? null : client.getMsgId());
        return fields;
    }

    /** The body as received by a consumer, or null. */
    private static Object decompressed(byte[] data) {
        MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(data), true, true);
        return message == null ? null : body(message);
    }

    private static Map<String, Object> fields(MessageExt message) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("topic", message.getTopic());
        fields.put("body", body(message));
        fields.put("queueId", message.getQueueId());
        fields.put("queueOffset", message.getQueueOffset());
        fields.put("physicalOffset", message.getCommitLogOffset());
        fields.put("bornTimestamp", message.getBornTimestamp());
        fields.put("bornHost", host(message.getBornHost()));
        fields.put("storeTimestamp", message.getStoreTimestamp());
        fields.put("storeHost", host(message.getStoreHost()));
        fields.put("flag", message.getFlag());
        fields.put("sysFlag", message.getSysFlag());
        fields.put("reconsumeTimes", message.getReconsumeTimes());
        fields.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        fields.put("bodyCrc", message.getBodyCRC());
        fields.put("storeSize", message.getStoreSize());
        fields.put("properties", message.getProperties());
        fields.put("tags", message.getTags());
        fields.put("messageId", message.getMsgId());
        return fields;
    }

    private static String body(Message message) {
        return hex(message.getBody() == null ? new byte[0] : message.getBody());
    }

    /** The result of MessageDecoder.encode: V1, the body compressed if the first word is 1. */
    private static Object encode(Iterator<String> words) throws Exception {
        boolean compress = words.next().equals("1");
        return hex(MessageDecoder.encode(fill(new MessageExt(), words), compress));
    }

    /**
     * The record that a 5.x broker writes to its log: V1 or V2, with the record's CRC if the second
     * word is 1. The broker's encoder leaves three fields empty, which append sets, as here.
     */
    private static Object encodeStored(Iterator<String> words) throws Exception {
        String version = words.next();
        boolean crc = words.next().equals("1");
        MessageExt message = fill((MessageExt) inner().getConstructor().newInstance(), words);
        MessageStoreConfig config = new MessageStoreConfig();
        call(config, "setEnabledAppendPropCRC", boolean.class, crc);
        Class<?> versions = Class.forName("org.apache.rocketmq.common.message.MessageVersion");
        Field constant = versions.getField("MESSAGE_VERSION_V" + version);
        call(message, "setVersion", versions, constant.get(null));
        String properties = MessageDecoder.messageProperties2String(message.getProperties());
        call(message, "setPropertiesString", String.class, properties);
        Class<?> encoders = Class.forName("org.apache.rocketmq.store.MessageExtEncoder");
        Object encoder = encoders.getConstructor(MessageStoreConfig.class).newInstance(config);
        Object refusal = encoders.getMethod("encode", inner()).invoke(encoder, message);
        if (refusal != null) {
            throw new IllegalArgumentException(refusal.toString());
        }
        ByteBuffer buffer = (ByteBuffer) encoders.getMethod("getEncoderBuffer").invoke(encoder);
        byte[] data = new byte[buffer.getInt(0)];
        buffer.get(data);
        ByteBuffer record = ByteBuffer.wrap(data);
        int bornHostBytes = (message.getSysFlag() & 0x10) == 0 ? 8 : 20;
        record.putLong(20, message.getQueueOffset());
        record.putLong(28, message.getCommitLogOffset());
        record.putLong(48 + bornHostBytes, message.getStoreTimestamp());
        if (crc) {
            int end = data.length - CRC_PROPERTY_BYTES;
            int value = UtilAll.crc32(data, 0, end);
            record.position(end);
            MessageDecoder.class.getMethod("createCrc32", ByteBuffer.class, int.class)
                .invoke(null, record, value);
        }
        return hex(data);
    }

    private static MessageExt fill(MessageExt message, Iterator<String> words) throws Exception {
        message.setTopic(text(words));
        message.setBody(bytes(words));
        message.setQueueId(number(words));
        message.setQueueOffset(longNumber(words));
        message.setCommitLogOffset(longNumber(words));
        message.setBornTimestamp(longNumber(words));
        message.setBornHost(address(words));
        message.setStoreTimestamp(longNumber(words));
        message.setStoreHost(address(words));
        message.setFlag(number(words));
        message.setSysFlag(number(words));
        message.setReconsumeTimes(number(words));
        message.setPreparedTransactionOffset(longNumber(words));
        message.setBodyCRC(number(words));
        MessageAccessor.setProperties(message, properties(words));
        return message;
    }

    /**
     * The result of the broker's recovery: CommitLog.checkMessageAndReturnSize with {@code
     * none}, {@code body} or (5.x) {@code record} checksums.
     */
    private static Object check(String checksum, byte[] data) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        if (checksum.equals("record")) {
            call(config, "setForceVerifyPropCRC", boolean.class, true);
        }
        // No constructor is called: that would open a store. The check needs only the config.
        DefaultMessageStore store = allocate(DefaultMessageStore.class);
        set(store, DefaultMessageStore.class, "messageStoreConfig", config);
        CommitLog log = allocate(CommitLog.class);
        set(log, CommitLog.class, "defaultMessageStore", store);
        boolean checkCrc = !checksum.equals("none");
        ByteBuffer buffer = ByteBuffer.wrap(data);
        DispatchRequest request;
        try {
            request = log.checkMessageAndReturnSize(buffer, checkCrc, IS_4);
        } catch (OutOfMemoryError e) { // 4.x allocates TOTALSIZE bytes without a limit
            request = new DispatchRequest(-1, false);
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("success", request.isSuccess());
        result.put("size", request.getMsgSize());
        result.put("tagsCode", request.getTagsCode());
        result.put("keys", request.getKeys());
        result.put("uniqueKey", request.getUniqKey());
        return result;
    }

    // --- batches ---------------------------------------------------------

    private static Object encodeBatch(Iterator<String> words) {
        List<Message> messages = new ArrayList<>();
        while (words.hasNext()) {
            Message message = new Message();
            message.setFlag(number(words));
            message.setBody(bytes(words));
            MessageAccessor.setProperties(message, properties(words));
            messages.add(message);
        }
        return hex(MessageDecoder.encodeMessages(messages));
    }

    private static Object decodeBatch(byte[] data) throws Exception {
        List<Object> messages = new ArrayList<>();
        for (Message message : MessageDecoder.decodeMessages(ByteBuffer.wrap(data))) {
            Map<String, Object> fields = new LinkedHashMap<>();
            fields.put("flag", message.getFlag());
            fields.put("body", body(message));
            fields.put("properties", message.getProperties());
            messages.add(fields);
        }
        return messages;
    }

    /** The messages that a 5.x client reads from a record with a batch. */
    private static Object unwrap(byte[] data) throws Exception {
        MessageExt outer = MessageDecoder.decode(ByteBuffer.wrap(data), true, true);
        List<MessageExt> inner = new ArrayList<>();
        MessageDecoder.class.getMethod("decodeMessage", MessageExt.class, List.class)
            .invoke(null, outer, inner);
        List<Object> messages = new ArrayList<>();
        for (MessageExt message : inner) {
            messages.add(fields(message));
        }
        return messages;
    }

    // --- properties, hashes, ids -----------------------------------------

    private static String properties2string(Map<String, String> properties) {
        String text = MessageDecoder.messageProperties2String(properties);
        return hex(text.getBytes(StandardCharsets.UTF_8));
    }

    private static Object string2properties(byte[] data) {
        String text = new String(data, StandardCharsets.UTF_8);
        return MessageDecoder.string2messageProperties(text);
    }

    private IndexFile indexFile;

    private IndexFile indexFile() throws Exception {
        if (indexFile == null) {
            File file = new File(Files.createTempDirectory("index").toFile(), "20260101000000000");
            indexFile = new IndexFile(file.getPath(), 10, 10, 0, 0);
        }
        return indexFile;
    }

    private static Object tagsCode(String tags) throws Exception {
        return inner().getMethod("tagsString2tagsCode", String.class).invoke(null, tags);
    }

    private static String createMessageId(Iterator<String> words) throws Exception {
        return MessageDecoder.createMessageId(address(words), longNumber(words));
    }

    private static Object decodeMessageId(String text) throws Exception {
        MessageId id = MessageDecoder.decodeMessageId(text);
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("host", host(id.getAddress()));
        fields.put("offset", id.getOffset());
        return fields;
    }

    // --- reflection ------------------------------------------------------

    private static Class<?> inner() throws ClassNotFoundException {
        try {
            return Class.forName("org.apache.rocketmq.common.message.MessageExtBrokerInner");
        } catch (ClassNotFoundException e) {
            return Class.forName("org.apache.rocketmq.store.MessageExtBrokerInner"); // 4.x
        }
    }

    private static void call(Object on, String name, Class<?> type, Object argument)
        throws Exception {
        Method method = on.getClass().getMethod(name, type);
        method.invoke(on, argument);
    }

    private static void set(Object on, Class<?> in, String name, Object value) throws Exception {
        Field field = in.getDeclaredField(name);
        field.setAccessible(true);
        field.set(on, value);
    }

    private static <T> T allocate(Class<T> type) throws Exception {
        Field field = sun.misc.Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        return type.cast(((sun.misc.Unsafe) field.get(null)).allocateInstance(type));
    }

    // --- words ------------------------------------------------------------

    /** A count, then as many names and values. */
    private static Map<String, String> properties(Iterator<String> words) {
        Map<String, String> properties = new LinkedHashMap<>();
        for (int left = number(words); left > 0; left--) {
            properties.put(text(words), text(words));
        }
        return properties;
    }

    private static SocketAddress address(Iterator<String> words) throws Exception {
        InetAddress address = InetAddress.getByAddress(bytes(words));
        return new InetSocketAddress(address, number(words));
    }

    private static String host(SocketAddress socketAddress) {
        InetSocketAddress address = (InetSocketAddress) socketAddress;
        String text = address.getAddress().getHostAddress();
        boolean is4 = address.getAddress() instanceof Inet4Address;
        return (is4 ? text : "[" + text + "]") + ":" + address.getPort();
    }

    private static String hex(byte[] data) {
        StringBuilder out = new StringBuilder(data.length * 2);
        for (byte b : data) {
            out.append(Character.forDigit(b >> 4 & 0xf, 16)).append(Character.forDigit(b & 0xf, 16));
        }
        return out.toString();
    }
}
