import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

/**
 * Protocol between {@code Oracle} of java_oracle.py and the Java classes that extend this one.
 *
 * <p>Reads lines of words, {@code command argument ...}, and collects them until a line with a dot;
 * then answers each with one line of JSON, {@code {"value": ...}} or {@code {"error": "..."}}.
 * Numbers are decimal, bytes hex, and text the hex of its UTF-16 code units, so that any Java
 * string can be encoded; {@code -} is empty.
 */
abstract class WordOracle {
    private static final String EMPTY = "-";

    /**
     * Answers a request.
     *
     * @return null, a boolean, a number, a text, or maps and lists of these
     * @throws Throwable returned as the error
     */
    abstract Object run(String command, Iterator<String> words) throws Exception;

    /** Answers requests until the input ends; then exits, since RocketMQ leaves threads running. */
    final void serve() throws Exception {
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
                out.println(json(answer(List.of(request.split(" ")).iterator())));
            }
            out.flush();
            lines.clear();
        }
        System.err.flush();
        Runtime.getRuntime().halt(0);
    }

    private Map<String, Object> answer(Iterator<String> words) {
        try {
            return Collections.singletonMap("value", run(words.next(), words)); // which may be null
        } catch (Throwable e) {
            Throwable cause = e.getCause() == null ? e : e.getCause();
            return Map.of("error", cause.toString());
        }
    }

    // --- words -----------------------------------------------------------

    static int number(Iterator<String> words) {
        return Integer.parseInt(words.next());
    }

    static long longNumber(Iterator<String> words) {
        return Long.parseLong(words.next());
    }

    static byte[] bytes(Iterator<String> words) {
        String word = words.next();
        byte[] data = new byte[word.equals(EMPTY) ? 0 : word.length() / 2];
        for (int i = 0; i < data.length; i++) {
            data[i] = (byte) (Character.digit(word.charAt(2 * i), 16) << 4
                | Character.digit(word.charAt(2 * i + 1), 16));
        }
        return data;
    }

    static String text(Iterator<String> words) {
        byte[] data = bytes(words);
        char[] units = new char[data.length / 2]; // no decoder: unpaired surrogates are allowed
        for (int i = 0; i < units.length; i++) {
            units[i] = (char) ((data[2 * i] & 0xff) << 8 | data[2 * i + 1] & 0xff);
        }
        return new String(units);
    }

    // --- JSON ------------------------------------------------------------

    /** Encodes as ASCII, without a library, because every version has a different one. */
    private static String json(Object value) {
        StringBuilder out = new StringBuilder();
        json(out, value);
        return out.toString();
    }

    private static void json(StringBuilder out, Object value) {
        if (value instanceof Map<?, ?>) {
            String separator = "{";
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                out.append(separator);
                json(out, String.valueOf(entry.getKey()));
                out.append(':');
                json(out, entry.getValue());
                separator = ",";
            }
            out.append(separator.equals("{") ? "{}" : "}");
        } else if (value instanceof Iterable<?>) {
            String separator = "[";
            for (Object item : (Iterable<?>) value) {
                out.append(separator);
                json(out, item);
                separator = ",";
            }
            out.append(separator.equals("[") ? "[]" : "]");
        } else if (value instanceof String) {
            out.append('"');
            for (char unit : ((String) value).toCharArray()) {
                if (unit < ' ' || unit > '~' || unit == '"' || unit == '\\') {
                    out.append(String.format("\\u%04x", (int) unit));
                } else {
                    out.append(unit);
                }
            }
            out.append('"');
        } else if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else {
            throw new IllegalArgumentException("no JSON for " + value.getClass());
        }
    }
}
