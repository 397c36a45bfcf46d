import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * Calls RocketMQ's own SQL92 filter for the tests.
 *
 * <p>{@code filter EXPRESSION COUNT NAME VALUE NAME VALUE ... COUNT NAME VALUE ...} is answered with
 * a letter for each property map, T(rue), F(alse), N(ull) or E(rror); or, if the expression does
 * not compile, with C and the cause.
 */
public final class FilterOracle extends WordOracle {
    public static void main(String[] arguments) throws Exception {
        new FilterOracle().serve();
    }

    @Override
    Object run(String command, Iterator<String> words) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text(words));
        } catch (Throwable e) {
            Throwable cause = e.getCause() == null ? e : e.getCause();
            return "C" + cause.getClass().getSimpleName() + ": " + cause.getMessage();
        }
        StringBuilder answers = new StringBuilder();
        while (words.hasNext()) {
            Map<String, String> properties = new HashMap<>();
            for (int rest = number(words); rest > 0; rest--) {
                properties.put(text(words), text(words));
            }
            answers.append(evaluate(expression, properties));
        }
        return answers.toString();
    }

    /** Evaluates an expression; in ExpressionMessageFilter only T is a match. */
    private static char evaluate(Expression expression, Map<String, String> properties) {
        try {
            Object value = expression.evaluate(new Context(properties));
            return value == null ? 'N' : (Boolean) value ? 'T' : 'F';
        } catch (Throwable e) {
            return 'E';
        }
    }

    /** Same as the broker's MessageEvaluationContext, whose jar is large. */
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
}
