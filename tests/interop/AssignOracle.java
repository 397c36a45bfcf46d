import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Calls the allocation strategies of RocketMQ's client for the tests.
 *
 * <p>{@code sort COUNT (TOPIC BROKER QUEUE_ID)... COUNT CLIENT_ID...} is answered with the sorted
 * places of the queues and of the clients; {@code STRATEGY CLIENT_ID COUNT QUEUE... COUNT
 * CLIENT_ID...} and arguments with the places of the queues that the client gets. The room is the
 * part of a broker's name or a client's id before the {@code @}.
 */
public final class AssignOracle extends WordOracle {
    public static void main(String[] arguments) throws Exception {
        new AssignOracle().serve();
    }

    @Override
    Object run(String command, Iterator<String> words) {
        if (command.equals("sort")) {
            List<MessageQueue> queues = queues(words);
            List<String> clients = texts(words);
            List<MessageQueue> sortedQueues = new ArrayList<>(queues);
            List<String> sortedClients = new ArrayList<>(clients);
            Collections.sort(sortedQueues);
            Collections.sort(sortedClients);
            return List.of(places(sortedQueues, queues), places(sortedClients, clients));
        }
        String client = text(words);
        List<MessageQueue> queues = queues(words);
        List<String> clients = texts(words);
        AllocateMessageQueueStrategy strategy = strategy(command, words, queues);
        return places(strategy.allocate("group", client, queues, clients), queues);
    }

    private static AllocateMessageQueueStrategy strategy(
        String name, Iterator<String> words, List<MessageQueue> queues) {
        switch (name) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash(number(words));
            case "CONFIG":
                AllocateMessageQueueByConfig byConfig = new AllocateMessageQueueByConfig();
                List<MessageQueue> chosen = new ArrayList<>();
                for (int rest = number(words); rest > 0; rest--) {
                    chosen.add(queues.get(number(words)));
                }
                byConfig.setMessageQueueList(chosen);
                return byConfig;
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
                byRoom.setConsumeridcs(new HashSet<>(texts(words)));
                return byRoom;
            case "MACHINE_ROOM_NEARBY":
                return new AllocateMachineRoomNearby(
                    strategy(text(words), words, queues), new Rooms());
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private static final class Rooms implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return queue.getBrokerName().split("@")[0];
        }

        @Override
        public String consumerDeployIn(String clientId) {
            return clientId.split("@")[0];
        }
    }

    private static List<MessageQueue> queues(Iterator<String> words) {
        List<MessageQueue> queues = new ArrayList<>();
        for (int rest = number(words); rest > 0; rest--) {
            String topic = text(words);
            String broker = text(words);
            queues.add(new MessageQueue(topic, broker, number(words)));
        }
        return queues;
    }

    private static List<String> texts(Iterator<String> words) {
        List<String> texts = new ArrayList<>();
        for (int rest = number(words); rest > 0; rest--) {
            texts.add(text(words));
        }
        return texts;
    }

    private static <T> List<Integer> places(List<T> some, List<T> all) {
        List<Integer> places = new ArrayList<>();
        for (T one : some) {
            places.add(all.indexOf(one));
        }
        return places;
    }
}
