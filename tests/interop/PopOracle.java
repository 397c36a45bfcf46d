import com.alibaba.fastjson2.JSON;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Iterator;
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

/** Encodes and decodes the stored formats of pop consumption with RocketMQ 5.5's own classes. */
public final class PopOracle extends WordOracle {
    public static void main(String[] arguments) throws Exception {
        new PopOracle().serve();
    }

    @Override
    Object run(String command, Iterator<String> words) {
        String text = text(words);
        switch (command) {
            case "handle": { // topic, broker, start, pop, invisible, revive, queue, offset
                String broker = text(words);
                return ExtraInfoUtil.buildExtraInfo(longNumber(words), longNumber(words),
                    longNumber(words), number(words), text, broker, number(words),
                    longNumber(words));
            }
            case "infos": { // topic, queue, start, offsets...
                StringBuilder start = new StringBuilder();
                StringBuilder messages = new StringBuilder();
                int queue = number(words);
                ExtraInfoUtil.buildStartOffsetInfo(start, text, queue, longNumber(words));
                List<Long> offsets = new ArrayList<>();
                while (words.hasNext()) {
                    offsets.add(longNumber(words));
                }
                ExtraInfoUtil.buildMsgOffsetInfo(messages, text, queue, offsets);
                return List.of(start.toString(), messages.toString());
            }
            case "order": { // topic, queue, least, (offset, count)...
                StringBuilder order = new StringBuilder();
                int queue = number(words);
                int least = number(words);
                while (words.hasNext()) {
                    ExtraInfoUtil.buildQueueOffsetOrderCountInfo(order, text, queue,
                        longNumber(words), number(words));
                }
                ExtraInfoUtil.buildQueueIdOrderCountInfo(order, text, queue, least);
                return order.toString();
            }
            case "topics": { // topic, group
                String group = text(words);
                return List.of(KeyBuilder.buildPopRetryTopicV1(text, group),
                    KeyBuilder.buildPopRetryTopicV2(text, group));
            }
            case "normal": // retry topic, group
                return KeyBuilder.parseNormalTopic(text, text(words));
            case "checkpoint": { // a body: its fields in Java, and its text written again
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
            case "orders": { // consumerOrderInfo.json: fields of queue 2 of T@G in Java
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
            case "modes": { // messageRequestMode.json: fields of group G of T in Java
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
                ack.setConsumerGroup(text(words));
                ack.setRetry(words.next());
                ack.setStartOffset(longNumber(words));
                ack.setQueueId(3);
                ack.setReviveQueueId(5);
                ack.setPopTime(1_700_000_000_000L);
                ack.setInvisibleTime(60_000);
                BitSet bits = new BitSet();
                while (words.hasNext()) {
                    bits.set(number(words));
                }
                ack.setBitSet(bits);
                BatchAckMessageRequestBody body = new BatchAckMessageRequestBody();
                body.setBrokerName("b");
                body.setAcks(List.of(ack));
                return new String(body.encode(), StandardCharsets.UTF_8);
            }
            default: throw new IllegalArgumentException("no command " + command);
        }
    }
}
