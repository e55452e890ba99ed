import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/** Writes what the Java client writes: reads lines of JSON, answers each with a line of hexadecimal digits. */
public class GroupVectors {
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode asked = json.readTree(line);
            System.out.println(HEX.formatHex(array(answer(asked))));
        }
    }

    private static ByteBuffer answer(JsonNode asked) throws Exception {
        short version = (short) asked.get("version").asInt();
        switch (asked.get("what").asText()) {
            case "message":
                return message(asked.get("class").asText(), asked.get("values"), version);
            case "subscription":
                Optional<String> rack = asked.hasNonNull("rack") ? Optional.of(asked.get("rack").asText()) : Optional.empty();
                return ConsumerProtocol.serializeSubscription(new Subscription(
                    texts(asked.get("topics")), bytes(asked.get("user_data")), partitions(asked.get("owned")),
                    asked.get("generation").asInt(), rack), version);
            case "assignment":
                return ConsumerProtocol.serializeAssignment(
                    new Assignment(partitions(asked.get("partitions")), bytes(asked.get("user_data"))), version);
            default:
                return userData(asked);
        }
    }

    /** The user data of a sticky assignor after an assignment. */
    private static ByteBuffer userData(JsonNode asked) {
        ConsumerPartitionAssignor assignor =
            asked.get("what").asText().equals("sticky") ? new StickyAssignor() : new CooperativeStickyAssignor();
        int generation = asked.get("generation").asInt();
        if (generation >= 0)
            assignor.onAssignment(
                new Assignment(partitions(asked.get("previous"))),
                new ConsumerGroupMetadata("g", generation, "m", Optional.empty()));
        ByteBuffer found = assignor.subscriptionUserData(new HashSet<>(Arrays.asList("t")));
        return found == null ? ByteBuffer.allocate(0) : found;
    }

    private static ByteBuffer message(String name, JsonNode values, short version) throws Exception {
        Class<?> converter = Class.forName("org.apache.kafka.common.message." + name + "JsonConverter");
        Method read = converter.getMethod("read", JsonNode.class, short.class);
        return MessageUtil.toByteBuffer((Message) read.invoke(null, values, version), version);
    }

    private static List<String> texts(JsonNode node) {
        List<String> found = new ArrayList<>();
        node.forEach(one -> found.add(one.asText()));
        return found;
    }

    private static ByteBuffer bytes(JsonNode node) {
        return node == null || node.isNull() ? null : ByteBuffer.wrap(HEX.parseHex(node.asText()));
    }

    private static List<TopicPartition> partitions(JsonNode node) {
        List<TopicPartition> found = new ArrayList<>();
        node.forEach(one -> found.add(new TopicPartition(one.get(0).asText(), one.get(1).asInt())));
        return found;
    }

    private static byte[] array(ByteBuffer buffer) {
        byte[] found = new byte[buffer.remaining()];
        buffer.get(found);
        return found;
    }
}
