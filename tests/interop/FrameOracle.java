import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.embedded.EmbeddedChannel;
import java.io.ByteArrayOutputStream;
import java.lang.reflect.Method;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.netty.NettyDecoder;
import org.apache.rocketmq.remoting.netty.NettyEncoder;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.SerializeType;

/** Frames as RocketMQ's own encoder writes them and its decoder reads them. */
final class FrameOracle {
    private static final String[] PACKAGES = {
        "org.apache.rocketmq.common.protocol.", "org.apache.rocketmq.remoting.protocol.",
    };
    private static final String[] PARTS = {
        "header.", "header.namesrv.", "body.", "heartbeat.", "route.", "", "topic."
    };

    private FrameOracle() {}

    /**
     * The frame of {@code {"code", "opaque", "header": NAME, "fields": {}, "extFields": {}, "body":
     * base64 or "bodyType": NAME, "bodyValue": {}, "reply", "oneway", "remark", "language",
     * "version", "serialization"}}; names are of classes, without their package.
     */
    static String encode(JSONObject request) throws Exception {
        int code = request.getIntValue("code");
        CommandCustomHeader header = null;
        if (request.getString("header") != null) {
            Class<?> type = type(request.getString("header"));
            header = (CommandCustomHeader) type.getConstructor().newInstance();
            JSONObject settings = new JSONObject();
            settings.put("settings", request.getJSONObject("fields"));
            ClientOracle.configure(header, settings);
        }
        RemotingCommand command = RemotingCommand.createRequestCommand(code, header);
        if (request.getBooleanValue("reply")) {
            command.markResponseType();
        }
        if (request.getBooleanValue("oneway")) {
            command.markOnewayRPC();
        }
        command.setOpaque(request.getIntValue("opaque"));
        command.setRemark(request.getString("remark"));
        command.setSerializeTypeCurrentRPC(
            SerializeType.valueOf(request.getString("serialization")));
        if (request.get("language") != null) {
            command.setLanguage(LanguageCode.valueOf(request.getString("language")));
        }
        command.setVersion(request.get("version") == null
            ? MQVersion.CURRENT_VERSION : request.getIntValue("version"));
        JSONObject more = request.getJSONObject("extFields");
        if (more != null) {
            for (String name : new TreeMap<>(more).keySet()) {
                command.addExtField(name, more.getString(name));
            }
        }
        if (request.getString("body") != null) {
            command.setBody(Base64.getDecoder().decode(request.getString("body")));
        } else if (request.getString("bodyType") != null) {
            command.setBody(body(request));
        }
        return Base64.getEncoder().encodeToString(bytes(command));
    }

    private static byte[] body(JSONObject request) throws Exception {
        Object body =
            JSON.parseObject(request.getString("bodyValue"), type(request.getString("bodyType")));
        if (request.get("compressed") != null) { // RegisterBrokerBody has a separate encoding
            for (Method method : body.getClass().getMethods()) {
                if (method.getName().equals("encode") && method.getParameterCount() > 0
                    && method.getParameterTypes()[0] == boolean.class) {
                    return (byte[]) method.invoke(body, request.getBooleanValue("compressed"));
                }
            }
        }
        return RemotingSerializable.encode(body);
    }

    private static byte[] bytes(RemotingCommand command) {
        EmbeddedChannel channel = new EmbeddedChannel(new NettyEncoder());
        channel.writeOutbound(command);
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        // In 4.5.2's netty, these return Object.
        for (Object next = channel.readOutbound(); next != null; next = channel.readOutbound()) {
            ByteBuf part = (ByteBuf) next;
            byte[] bytes = new byte[part.readableBytes()];
            part.readBytes(bytes);
            all.writeBytes(bytes);
            part.release();
        }
        channel.finishAndReleaseAll();
        return all.toByteArray();
    }

    /** Decodes a frame with its length. With "header", returns the fields of that class too. */
    static Map<String, Object> decode(JSONObject request) throws Exception {
        EmbeddedChannel channel = new EmbeddedChannel(new NettyDecoder());
        channel.writeInbound(Unpooled.wrappedBuffer(
            Base64.getDecoder().decode(request.getString("frame"))));
        RemotingCommand command = (RemotingCommand) (Object) channel.readInbound();
        boolean isOpen = channel.isOpen();
        channel.finishAndReleaseAll();
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("open", isOpen);
        if (command == null) {
            return found;
        }
        found.put("code", command.getCode());
        found.put("language", command.getLanguage().name());
        found.put("version", command.getVersion());
        found.put("opaque", command.getOpaque());
        found.put("flag", command.getFlag());
        found.put("remark", command.getRemark());
        found.put("serialization", command.getSerializeTypeCurrentRPC().name());
        found.put("extFields",
            command.getExtFields() == null ? null : new TreeMap<>(command.getExtFields()));
        byte[] body = command.getBody();
        found.put("body", Base64.getEncoder().encodeToString(body == null ? new byte[0] : body));
        if (request.getString("header") != null) {
            Class<?> type = type(request.getString("header"));
            Object header = command.decodeCommandCustomHeader(
                type.asSubclass(CommandCustomHeader.class));
            found.put("fields", JSON.toJSON(header));
        }
        return found;
    }

    private static Class<?> type(String name) {
        for (String pack : PACKAGES) {
            for (String part : PARTS) {
                try {
                    return Class.forName(pack + part + name);
                } catch (ClassNotFoundException e) {
                    continue; // 5.x moved them
                }
            }
        }
        throw new IllegalArgumentException("no class " + name);
    }
}
