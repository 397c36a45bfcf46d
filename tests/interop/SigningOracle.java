import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.AclUtils;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.SerializeType;

/** Signs requests with RocketMQ's own classes. */
public final class SigningOracle extends WordOracle {
    public static void main(String[] arguments) throws Exception {
        new SigningOracle().serve();
    }

    @Override
    Object run(String command, Iterator<String> words) throws Exception {
        String accessKey = text(words);
        String secretKey = text(words);
        String token = text(words);
        RemotingCommand request = RemotingCommand.createRequestCommand(number(words), null);
        request.setOpaque(1); // else the number of requests before it
        request.setBody(bytes(words));
        Map<String, String> fields = new LinkedHashMap<>();
        while (words.hasNext()) {
            String name = text(words);
            fields.put(name, text(words));
        }
        request.setExtFields(new LinkedHashMap<>(fields));
        switch (command) {
            case "sign": // all that a client does
                new AclClientRPCHook(
                    new SessionCredentials(accessKey, secretKey, token.isEmpty() ? null : token))
                    .doBeforeRequest("127.0.0.1:10911", request);
                return request.getExtFields();
            case "frame": // what a client writes
            case "binary-frame":
                new AclClientRPCHook(new SessionCredentials(accessKey, secretKey))
                    .doBeforeRequest("127.0.0.1:10911", request);
                if (command.equals("binary-frame")) {
                    request.setSerializeTypeCurrentRPC(SerializeType.ROCKETMQ);
                }
                ByteBuffer frame = request.encode();
                byte[] data = new byte[frame.remaining()];
                frame.get(data);
                return Base64.getEncoder().encodeToString(data);
            case "content": // 4.5.2 signs declared fields of a header only
                return AclUtils.calSignature(
                    AclUtils.combineRequestContent(request, new TreeMap<>(fields)), secretKey);
            default:
                throw new IllegalArgumentException("no command " + command);
        }
    }
}
