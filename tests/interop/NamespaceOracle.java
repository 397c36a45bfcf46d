import java.lang.reflect.Method;
import java.util.Iterator;

/** Names with and without a namespace; the class moved between 4.x and 5.x. */
public final class NamespaceOracle extends WordOracle {
    private static final String[] PACKAGES = {
        "org.apache.rocketmq.common.protocol.", "org.apache.rocketmq.remoting.protocol.",
    };

    public static void main(String[] arguments) throws Exception {
        new NamespaceOracle().serve();
    }

    @Override
    Object run(String command, Iterator<String> words) throws Exception {
        String namespace = text(words);
        String name = text(words);
        switch (command) {
            case "wrap": return method("wrapNamespace").invoke(null, namespace, name);
            case "unwrap": return method("withoutNamespace").invoke(null, name, namespace);
            default: throw new IllegalArgumentException("no command " + command);
        }
    }

    private static Method method(String name) throws Exception {
        for (String place : PACKAGES) {
            try {
                Class<?> type = Class.forName(place + "NamespaceUtil");
                return type.getMethod(name, String.class, String.class);
            } catch (ClassNotFoundException e) {
                // in the other package
            }
        }
        throw new ClassNotFoundException("NamespaceUtil");
    }
}
