import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** Signs requests with the properties reput.accessKey and reput.secretKey, if they are set. */
final class Signing {
    static final RPCHook HOOK = System.getProperty("reput.accessKey") == null ? null
        : new AclClientRPCHook(new SessionCredentials(
            System.getProperty("reput.accessKey"), System.getProperty("reput.secretKey")));

    private Signing() {}
}
