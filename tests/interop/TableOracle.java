import java.io.StringReader;
import java.lang.reflect.Method;
import java.util.Iterator;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** Reads settings and tables with a broker's own classes. */
public final class TableOracle extends WordOracle {
    public static void main(String[] arguments) throws Exception {
        new TableOracle().serve();
    }

    @Override
    Object run(String command, Iterator<String> words) throws Exception {
        switch (command) {
            case "properties": return properties(text(words));
            case "settings": return settings(text(words), text(words));
            case "table": return table(text(words), text(words));
            default: throw new IllegalArgumentException("no command " + command);
        }
    }

    /** The properties that java.util.Properties reads. */
    private static Map<String, String> properties(String text) throws Exception {
        Properties found = new Properties();
        found.load(new StringReader(text));
        Map<String, String> pairs = new TreeMap<>();
        found.forEach((key, value) -> pairs.put((String) key, (String) value));
        return pairs;
    }

    /** Every setting of a configuration class after a broker.conf, from its getters. */
    private static Map<String, String> settings(String name, String conf) throws Exception {
        Object config = Class.forName(name).getConstructor().newInstance();
        Properties given = new Properties();
        given.load(new StringReader(conf));
        MixAll.properties2Object(given, config);
        Map<String, String> found = new TreeMap<>();
        for (Method setter : config.getClass().getMethods()) {
            if (!setter.getName().startsWith("set") || setter.getParameterCount() != 1) {
                continue;
            }
            String capital = setter.getName().substring(3);
            for (String prefix : new String[] {"get", "is"}) {
                try {
                    Object value = config.getClass().getMethod(prefix + capital).invoke(config);
                    String key = Character.toLowerCase(capital.charAt(0)) + capital.substring(1);
                    found.put(key, String.valueOf(value));
                } catch (NoSuchMethodException e) {
                    continue; // the other prefix, or a setter without a getter
                }
            }
        }
        return found;
    }

    /** The text that the class of a table writes after it has read a text. */
    private static Map<String, String> table(String name, String text) throws Exception {
        Class<?> type = Class.forName(name);
        // The class of filters drops those that a broker would compile again, and the class of
        // delay offsets needs a whole broker: these two are only parsed.
        if (name.endsWith("ConsumerFilterManager") || name.endsWith("Wrapper")) {
            Object read = RemotingSerializable.fromJson(text, type);
            return Map.of("text", RemotingSerializable.toJson(read, false));
        }
        Object table = type.getConstructor().newInstance();
        type.getMethod("decode", String.class).invoke(table, text);
        return Map.of("text", (String) type.getMethod("encode").invoke(table));
    }
}
