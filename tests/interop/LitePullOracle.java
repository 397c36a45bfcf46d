import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.message.MessageQueue;

/** The lite pull consumer of ClientOracle.java, for versions that have one (4.6 and later). */
public final class LitePullOracle implements ClientOracle.Handle {
    private final DefaultLitePullConsumer consumer;

    public LitePullOracle(JSONObject request) throws Exception {
        consumer = new DefaultLitePullConsumer(request.getString("group"), Signing.HOOK);
        ClientOracle.configure(consumer, request);
        if (request.getString("topic") != null) {
            consumer.subscribe(request.getString("topic"), request.getString("expression"));
        }
        consumer.start();
    }

    @Override
    public Object run(String what, JSONObject request) throws Exception {
        MessageQueue queue = ClientOracle.queue(request.getJSONObject("queue"));
        switch (what) {
            case "queues": return consumer.fetchMessageQueues(request.getString("topic"));
            case "poll": return ClientOracle.messages(
                consumer.poll(request.getLongValue("timeoutMillis")));
            case "assign":
                List<MessageQueue> queues = new ArrayList<>();
                for (Object one : request.getJSONArray("queues")) {
                    queues.add(ClientOracle.queue((JSONObject) one));
                }
                consumer.assign(queues);
                return null;
            case "seek": consumer.seek(queue, request.getLongValue("offset")); return null;
            case "seekToBegin": consumer.seekToBegin(queue); return null;
            case "seekToEnd": consumer.seekToEnd(queue); return null;
            case "commit": consumer.commitSync(); return null;
            case "committed": return consumer.committed(queue);
            case "search": return consumer.offsetForTimestamp(queue, request.getLongValue("time"));
            case "pause": consumer.pause(List.of(queue)); return null;
            case "resume": consumer.resume(List.of(queue)); return null;
            default: throw new IllegalArgumentException("a lite pull consumer cannot " + what);
        }
    }

    @Override
    public void close() {
        consumer.shutdown();
    }
}
