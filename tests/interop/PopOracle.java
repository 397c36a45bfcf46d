import com.alibaba.fastjson2.JSON;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.loadbalance.MessageRequestModeManager;
import org.apache.rocketmq.broker.pop.orderly.QueueLevelConsumerManager;
import org.apache.rocketmq.common.KeyBuilder;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.body.BatchAck;
import org.apache.rocketmq.remoting.protocol.body.BatchAckMessageRequestBody;
import org.apache.rocketmq.remoting.protocol.body.SetMessageRequestModeRequestBody;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.store.pop.AckMsg;
import org.apache.rocketmq.store.pop.BatchAckMsg;
import org.apache.rocketmq.store.pop.PopCheckPoint;

/** Asks RocketMQ 5.5's own classes what pop consumption writes down; see Oracle.java. */
public final class PopOracle {
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
            for (String one : lines) {
                Map<String, Object> answer = new LinkedHashMap<>();
                try {
                    answer.put("value", answer(one.split(" ")));
                } catch (Throwable e) {
                    answer.put("error", String.valueOf(e));
                }
                out.println(com.alibaba.fastjson.JSON.toJSONString(answer,
                    com.alibaba.fastjson.serializer.SerializerFeature.BrowserCompatible));
            }
            out.flush();
            lines.clear();
        }
    }

    private static Object answer(String[] words) {
        String text = text(words[1]);
        switch (words[0]) {
            case "handle": // topic, broker, start, pop, invisible, revive, queue, offset
                return ExtraInfoUtil.buildExtraInfo(number(words[3]), number(words[4]),
                    number(words[5]), (int) number(words[6]), text, text(words[2]),
                    (int) number(words[7]), number(words[8]));
            case "infos": { // topic, queue, start, offsets...
                StringBuilder start = new StringBuilder();
                StringBuilder messages = new StringBuilder();
                List<Long> offsets = new ArrayList<>();
                for (int i = 4; i < words.length; i++) {
                    offsets.add(number(words[i]));
                }
                int queue = (int) number(words[2]);
                ExtraInfoUtil.buildStartOffsetInfo(start, text, queue, number(words[3]));
                ExtraInfoUtil.buildMsgOffsetInfo(messages, text, queue, offsets);
                return List.of(start.toString(), messages.toString());
            }
            case "order": { // topic, queue, least, (offset, count)...
                StringBuilder order = new StringBuilder();
                int queue = (int) number(words[2]);
                for (int i = 4; i < words.length; i += 2) {
                    ExtraInfoUtil.buildQueueOffsetOrderCountInfo(order, text, queue,
                        number(words[i]), (int) number(words[i + 1]));
                }
                ExtraInfoUtil.buildQueueIdOrderCountInfo(order, text, queue,
                    (int) number(words[3]));
                return order.toString();
            }
            case "topics": // topic, group
                return List.of(KeyBuilder.buildPopRetryTopicV1(text, text(words[2])),
                    KeyBuilder.buildPopRetryTopicV2(text, text(words[2])));
            case "normal": // retry topic, group
                return KeyBuilder.parseNormalTopic(text, text(words[2]));
            case "checkpoint": { // a body: what Java reads of it, and writes again
                PopCheckPoint read = JSON.parseObject(text, PopCheckPoint.class);
                List<Long> offsets = new ArrayList<>();
                for (byte i = 0; i < read.getNum(); i++) {
                    offsets.add(read.ackOffsetByIndex(i));
                }
                Map<String, Object> found = new LinkedHashMap<>();
                found.put("topic", read.getTopic());
                found.put("group", read.getCId());
                found.put("queue", read.getQueueId());
                found.put("start", read.getStartOffset());
                found.put("pop", read.getPopTime());
                found.put("revive", read.getReviveTime());
                found.put("broker", read.getBrokerName());
                found.put("suspend", read.isSuspend());
                found.put("offsets", offsets);
                found.put("text", JSON.toJSONString(read));
                return found;
            }
            case "ack": {
                AckMsg read = JSON.parseObject(text, AckMsg.class);
                return List.of(read.getTopic(), read.getConsumerGroup(), read.getQueueId(),
                    read.getStartOffset(), read.getPopTime(), read.getAckOffset(),
                    JSON.toJSONString(read));
            }
            case "bAck": {
                BatchAckMsg read = JSON.parseObject(text, BatchAckMsg.class);
                return List.of(read.getTopic(), read.getConsumerGroup(), read.getQueueId(),
                    read.getStartOffset(), read.getPopTime(), read.getAckOffsetList(),
                    JSON.toJSONString(read));
            }
            case "orders": { // consumerOrderInfo.json: what Java reads of T@G's queue 2
                QueueLevelConsumerManager read =
                    RemotingSerializable.fromJson(text, QueueLevelConsumerManager.class);
                QueueLevelConsumerManager.OrderInfo one = read.getTable().get("T@G").get(2);
                Map<String, Object> found = new LinkedHashMap<>();
                found.put("pop", one.getPopTime());
                found.put("invisible", one.getInvisibleTime());
                found.put("second", one.getQueueOffset(1));
                found.put("next", one.getNextOffset());
                found.put("attempt", one.getAttemptId());
                found.put("visible", one.getOffsetNextVisibleTime().get(7L));
                found.put("count", one.getOffsetConsumedCount().get(7L));
                found.put("text", RemotingSerializable.toJson(read, false));
                return found;
            }
            case "modes": { // messageRequestMode.json: what Java reads of T's group G
                MessageRequestModeManager read =
                    RemotingSerializable.fromJson(text, MessageRequestModeManager.class);
                SetMessageRequestModeRequestBody one =
                    read.getMessageRequestModeMap().get("T").get("G");
                return List.of(one.getMode().name(), one.getPopShareQueueNum(),
                    RemotingSerializable.toJson(read, false));
            }
            case "acks": { // topic, group, retry, start, bits...: the body of 200151
                BatchAck ack = new BatchAck();
                ack.setTopic(text);
                ack.setConsumerGroup(text(words[2]));
                ack.setRetry(words[3]);
                ack.setStartOffset(number(words[4]));
                ack.setQueueId(3);
                ack.setReviveQueueId(5);
                ack.setPopTime(1_700_000_000_000L);
                ack.setInvisibleTime(60_000);
                BitSet bits = new BitSet();
                for (int i = 5; i < words.length; i++) {
                    bits.set((int) number(words[i]));
                }
                ack.setBitSet(bits);
                BatchAckMessageRequestBody body = new BatchAckMessageRequestBody();
                body.setBrokerName("b");
                body.setAcks(List.of(ack));
                return new String(body.encode(), StandardCharsets.UTF_8);
            }
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    private static long number(String word) {
        return Long.parseLong(word);
    }

    private static String text(String hex) {
        if (hex.equals("-")) {
            return "";
        }
        StringBuilder found = new StringBuilder();
        for (int i = 0; i < hex.length(); i += 4) {
            found.append((char) Integer.parseInt(hex.substring(i, i + 4), 16));
        }
        return found.toString();
    }
}
