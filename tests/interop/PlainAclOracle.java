import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclUtils;
import org.apache.rocketmq.acl.common.Permission;
import org.apache.rocketmq.acl.plain.PlainAccessResource;
import org.apache.rocketmq.acl.plain.RemoteAddressStrategy;
import org.apache.rocketmq.acl.plain.RemoteAddressStrategyFactory;
import org.apache.rocketmq.common.PlainAccessConfig;

/** White addresses and files of access control 1.0, read by RocketMQ's own classes. */
public final class PlainAclOracle extends WordOracle {
    public static void main(String[] arguments) throws Exception {
        new PlainAclOracle().serve();
    }

    @Override
    Object run(String command, Iterator<String> words) throws Exception {
        switch (command) {
            case "match": // a pattern and addresses -> which match; null if the pattern is refused
                return match(text(words), words);
            case "accounts": // the text of a file -> its accounts; null if it is refused
                return accounts(text(words));
            default:
                throw new IllegalArgumentException("no command " + command);
        }
    }

    private static Object match(String pattern, Iterator<String> words) {
        RemoteAddressStrategy strategy;
        try {
            strategy = new RemoteAddressStrategyFactory().getRemoteAddressStrategy(pattern);
        } catch (RuntimeException refused) {
            return null;
        }
        List<Object> matches = new ArrayList<>();
        while (words.hasNext()) {
            PlainAccessResource peer = new PlainAccessResource();
            peer.setWhiteRemoteAddress(text(words));
            try {
                matches.add(strategy.match(peer));
            } catch (RuntimeException failed) { // then the broker refuses the request
                matches.add(false);
            }
        }
        return matches;
    }

    private static Object accounts(String text) throws Exception {
        Path path = Files.createTempFile("plain", ".yml");
        try {
            Files.write(path, text.getBytes(StandardCharsets.UTF_8));
            JSONObject data = AclUtils.getYamlDataObject(path.toString(), JSONObject.class);
            List<Object> accounts = new ArrayList<>();
            for (PlainAccessConfig config
                : data.getJSONArray("accounts").toJavaList(PlainAccessConfig.class)) {
                PlainAccessResource perms = new PlainAccessResource();
                Permission.parseResourcePerms(perms, false, config.getGroupPerms());
                Permission.parseResourcePerms(perms, true, config.getTopicPerms());
                Map<String, Object> account = new LinkedHashMap<>();
                account.put("accessKey", config.getAccessKey());
                account.put("secretKey", config.getSecretKey());
                account.put("whiteRemoteAddress", config.getWhiteRemoteAddress());
                account.put("admin", config.isAdmin());
                account.put("topic", (int) Permission.parsePermFromString(config.getDefaultTopicPerm()));
                account.put("group", (int) Permission.parsePermFromString(config.getDefaultGroupPerm()));
                Map<String, Object> permissions = new LinkedHashMap<>();
                if (perms.getResourcePermMap() != null) {
                    perms.getResourcePermMap().forEach((name, perm) -> permissions.put(name, (int) perm));
                }
                account.put("permissions", permissions);
                accounts.add(account);
            }
            return accounts;
        } catch (RuntimeException refused) {
            return null;
        } finally {
            Files.delete(path);
        }
    }
}
