import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.StringReader;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * Asks a broker's own classes about its settings and tables.
 *
 * <p>Lines of words as in {@code Oracle.java}: bytes and text as hex, text in UTF-16. An answer is
 * {@code {"value": ...}} with a map of texts, or {@code {"error": "..."}}.
 */
public final class TableOracle {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        System.setOut(System.err); // loggers write to stdout
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        List<String> lines = new ArrayList<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (!line.equals(".")) {
                lines.add(line);
                continue;
            }
            for (String request : lines) {
                out.println(answer(List.of(request.split(" ")).iterator()));
            }
            out.flush();
            lines.clear();
        }
    }

    private static String answer(Iterator<String> words) {
        try {
            return "{\"value\":" + json(run(words.next(), words)) + "}";
        } catch (Throwable e) {
            Throwable cause = e.getCause() == null ? e : e.getCause();
            return "{\"error\":" + json(cause.toString()) + "}";
        }
    }

    private static Map<String, String> run(String command, Iterator<String> words)
        throws Exception {
        switch (command) {
            case "properties": return properties(text(words.next()));
            case "settings": return settings(text(words.next()), text(words.next()));
            case "table": return table(text(words.next()), text(words.next()));
            default: throw new IllegalArgumentException("no command " + command);
        }
    }

    /** What java.util.Properties reads. */
    private static Map<String, String> properties(String text) throws Exception {
        Properties found = new Properties();
        found.load(new StringReader(text));
        Map<String, String> pairs = new TreeMap<>();
        found.forEach((key, value) -> pairs.put((String) key, (String) value));
        return pairs;
    }

    /** Every setting of a configuration class after a broker.conf: what its getters return. */
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
                    continue; // the other prefix, or a setter alone
                }
            }
        }
        return found;
    }

    /** What the class that keeps a table has, after it has read a text: as it would write it. */
    private static Map<String, String> table(String name, String text) throws Exception {
        Class<?> type = Class.forName(name);
        // The owner of filters drops those that a broker would make again, the one of delay
        // offsets needs a whole broker: these two are asked what they read first.
        if (name.endsWith("ConsumerFilterManager") || name.endsWith("Wrapper")) {
            Object read = RemotingSerializable.fromJson(text, type);
            return Map.of("text", RemotingSerializable.toJson(read, false));
        }
        Object table = type.getConstructor().newInstance();
        type.getMethod("decode", String.class).invoke(table, text);
        return Map.of("text", (String) type.getMethod("encode").invoke(table));
    }

    private static String text(String word) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i + 4 <= word.length() && !word.equals("-"); i += 4) {
            text.append((char) Integer.parseInt(word.substring(i, i + 4), 16));
        }
        return text.toString();
    }

    private static String json(Map<String, String> pairs) {
        StringBuilder out = new StringBuilder("{");
        for (Map.Entry<String, String> pair : pairs.entrySet()) {
            out.append(out.length() == 1 ? "" : ",");
            out.append(json(pair.getKey())).append(':').append(json(pair.getValue()));
        }
        return out.append('}').toString();
    }

    private static String json(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            boolean isPlain = c >= 0x20 && c < 0x7F && c != '"' && c != '\\';
            out.append(isPlain ? String.valueOf(c) : String.format("\\u%04x", (int) c));
        }
        return out.append('"').toString();
    }
}
