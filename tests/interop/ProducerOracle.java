import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import org.apache.rocketmq.client.latency.MQFaultStrategy;
import org.apache.rocketmq.common.message.MessageClientIDSetter;

/**
 * Asks what RocketMQ's producer decides, for the tests; speaks as {@code Oracle} does.
 *
 * <p>{@code uniqueKey ID} is answered with the address and the time that Java finds in it; {@code
 * newKey} with an id of its own; {@code avoidance MILLISECONDS} with how long a broker is avoided
 * that took so long.
 */
public final class ProducerOracle {
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
                out.println("{\"value\": " + answer(request) + "}");
            }
            out.flush();
            lines.clear();
        }
    }

    private static String answer(String request) throws Exception {
        Iterator<String> words = Arrays.asList(request.split(" ")).iterator();
        switch (words.next()) {
            case "uniqueKey":
                String key = text(words.next());
                return String.format(
                    "[\"%s\", %d]",
                    MessageClientIDSetter.getIPStrFromID(key),
                    MessageClientIDSetter.getNearlyTimeFromID(key).getTime());
            case "newKey":
                return '"' + MessageClientIDSetter.createUniqID() + '"';
            case "avoidance":
                Method compute =
                    MQFaultStrategy.class.getDeclaredMethod("computeNotAvailableDuration", long.class);
                compute.setAccessible(true);
                return compute.invoke(strategy(), Long.parseLong(words.next())).toString();
            default:
                throw new IllegalArgumentException(request);
        }
    }

    private static MQFaultStrategy strategy() throws Exception {
        return MQFaultStrategy.class.getDeclaredConstructor().newInstance();
    }

    /** The text whose UTF-16 code units are given in hex. */
    private static String text(String hex) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < hex.length(); i += 4) {
            text.append((char) Integer.parseInt(hex.substring(i, i + 4), 16));
        }
        return text.toString();
    }
}
