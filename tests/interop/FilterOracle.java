import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * Asks RocketMQ's own SQL92 filter, for the tests; speaks as {@code Oracle} does.
 *
 * <p>{@code filter EXPRESSION COUNT NAME VALUE NAME VALUE ... COUNT NAME VALUE ...} is answered with
 * a letter for each property map, T(rue), F(alse), N(ull) or E(rror); or, if the expression does
 * not compile, with C and the cause.
 */
public final class FilterOracle {
    private static final String EMPTY = "-";

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
                out.println("{\"value\": " + quote(answer(request.split(" "))) + "}");
            }
            out.flush();
            lines.clear();
        }
    }

    private static String answer(String[] words) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text(words[1]));
        } catch (Throwable e) {
            Throwable cause = e.getCause() == null ? e : e.getCause();
            return "C" + cause.getClass().getSimpleName() + ": " + cause.getMessage();
        }
        StringBuilder answers = new StringBuilder();
        for (int i = 2; i < words.length; ) {
            Map<String, String> properties = new HashMap<>();
            for (int rest = Integer.parseInt(words[i++]); rest > 0; rest--) {
                properties.put(text(words[i++]), text(words[i++]));
            }
            answers.append(evaluate(expression, properties));
        }
        return answers.toString();
    }

    /** What ExpressionMessageFilter makes of it; there, all but T is no match. */
    private static char evaluate(Expression expression, Map<String, String> properties) {
        try {
            Object value = expression.evaluate(new Context(properties));
            return value == null ? 'N' : (Boolean) value ? 'T' : 'F';
        } catch (Throwable e) {
            return 'E';
        }
    }

    /** As the broker's MessageEvaluationContext, which is in no small jar. */
    private static final class Context implements EvaluationContext {
        private final Map<String, String> properties;

        Context(Map<String, String> properties) {
            this.properties = properties;
        }

        @Override
        public Object get(String name) {
            return properties.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return new HashMap<>(properties);
        }
    }

    /** The text whose UTF-16 code units are given in hex. */
    private static String text(String hex) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; !hex.equals(EMPTY) && i < hex.length(); i += 4) {
            text.append((char) Integer.parseInt(hex.substring(i, i + 4), 16));
        }
        return text.toString();
    }

    private static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char unit : text.toCharArray()) {
            boolean isPlain = unit >= ' ' && unit <= '~' && unit != '"' && unit != '\\';
            quoted.append(isPlain ? String.valueOf(unit) : String.format("\\u%04x", (int) unit));
        }
        return quoted.append('"').toString();
    }
}
