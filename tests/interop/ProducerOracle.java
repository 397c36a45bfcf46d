import java.lang.reflect.Method;
import java.util.Iterator;
import java.util.List;
import org.apache.rocketmq.client.latency.MQFaultStrategy;
import org.apache.rocketmq.common.message.MessageClientIDSetter;

/**
 * Returns decisions of RocketMQ's producer for the tests.
 *
 * <p>{@code uniqueKey ID} is answered with the address and the time that Java finds in it; {@code
 * newKey} with a new id; {@code avoidance MILLISECONDS} with the time for which a broker with this
 * latency is avoided.
 */
public final class ProducerOracle extends WordOracle {
    public static void main(String[] arguments) throws Exception {
        new ProducerOracle().serve();
    }

    @Override
    Object run(String command, Iterator<String> words) throws Exception {
        switch (command) {
            case "uniqueKey":
                String key = text(words);
                return List.of(
                    MessageClientIDSetter.getIPStrFromID(key),
                    MessageClientIDSetter.getNearlyTimeFromID(key).getTime());
            case "newKey":
                return MessageClientIDSetter.createUniqID();
            case "avoidance":
                Method compute =
                    MQFaultStrategy.class.getDeclaredMethod("computeNotAvailableDuration", long.class);
                compute.setAccessible(true);
                return compute.invoke(strategy(), longNumber(words));
            default:
                throw new IllegalArgumentException("no command " + command);
        }
    }

    private static MQFaultStrategy strategy() throws Exception {
        return MQFaultStrategy.class.getDeclaredConstructor().newInstance();
    }
}
