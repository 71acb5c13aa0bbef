import static org.apache.kafka.coordinator.group.GroupCoordinatorRecordHelpers.*;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.JoinGroupRequestData.JoinGroupRequestProtocol;
import org.apache.kafka.common.message.JoinGroupRequestData.JoinGroupRequestProtocolCollection;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.types.RawTaggedField;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.OffsetAndMetadata;
import org.apache.kafka.coordinator.group.classic.ClassicGroup;
import org.apache.kafka.coordinator.group.classic.ClassicGroupMember;
import org.apache.kafka.coordinator.group.classic.ClassicGroupState;
import org.apache.kafka.coordinator.group.generated.*;
import org.apache.kafka.coordinator.group.modern.MemberState;
import org.apache.kafka.coordinator.group.modern.consumer.ConsumerGroupMember;
import org.apache.kafka.coordinator.group.modern.consumer.ResolvedRegularExpression;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/**
 * Prints records of __consumer_offsets as Kafka's own classes write them, as the JSON that
 * tests/broker/groups/golden_records.json holds: name -> [key, value], in hexadecimal. LIBS is a folder with Kafka's jars:
 *
 *   javac -cp "$LIBS/*" -d /tmp/golden tests/broker/groups/java/GoldenGroupRecords.java
 *   java -cp "/tmp/golden:$LIBS/*" GoldenGroupRecords > tests/broker/groups/golden_records.json
 *
 * "written" has the records in the versions that the group coordinator chooses, "read" all other versions, fields and types, and
 * "partitions" the partition of some group ids.
 */
public class GoldenGroupRecords {
    private static final String GROUP = "readers", TOPIC = "orders", MEMBER = "member-1";
    private static final Uuid TOPIC_ID = new Uuid(0x0102030405060708L, 0x090a0b0c0d0e0f10L);
    private static final Uuid OTHER_ID = new Uuid(0x1112131415161718L, 0x191a1b1c1d1e1f20L);
    private static final long TIME_MS = 1_700_000_000_000L;
    private static final String[] GROUPS = {
        "", "a", "readers", "polygenelubricants", "group-4711", "\u00e4\u00f6\u00fc", "\u6f22\u5b57", "\ud83c\udf0a tide"};

    private static final GroupCoordinatorRecordSerde SERDE = new GroupCoordinatorRecordSerde();
    private static final Map<String, String> written = new LinkedHashMap<>();
    private static final Map<String, String> read = new LinkedHashMap<>();

    public static void main(String[] args) {
        offsets();
        classicGroups();
        consumerGroups();
        members();
        assignments();
        earlierVersions();
        unknownTags();
        otherTypes();
        List<String> partitions = new ArrayList<>();
        for (String group : GROUPS) {
            int hash = group.hashCode();
            partitions.add("[" + json(group) + ", " + hash + ", " + Utils.abs(hash) % 50 + ", " + Utils.abs(hash) % 7 + "]");
        }
        System.out.println("{\"written\": {\n" + rows(written) + "\n},\n\"read\": {\n" + rows(read) + "\n},");
        System.out.println("\"partitions\": [\n" + String.join(",\n", partitions) + "\n]}");
    }

    // -- what the coordinator writes ----------------------------------------------------------------------------------

    private static void offsets() {
        offset("an offset", 4711, 3, "", OptionalLong.empty(), TOPIC_ID);
        offset("an offset without a leader epoch and a topic id", 0, -1, "", OptionalLong.empty(), Uuid.ZERO_UUID);
        offset("an offset with metadata", 1L << 40, 7, "\u00e4\u6f22\ud83c\udf0a".repeat(20), OptionalLong.empty(), TOPIC_ID);
        offset("an offset that expires", 5, 3, "note", OptionalLong.of(TIME_MS + 60_000), TOPIC_ID);
        write("an offset's tombstone", newOffsetCommitTombstoneRecord(GROUP, TOPIC, 11));
    }

    private static void offset(String name, long offset, int epoch, String metadata, OptionalLong expires, Uuid topicId) {
        OptionalInt leaderEpoch = epoch < 0 ? OptionalInt.empty() : OptionalInt.of(epoch);
        OffsetAndMetadata value = new OffsetAndMetadata(offset, leaderEpoch, metadata, TIME_MS, expires, topicId);
        write(name, newOffsetCommitRecord(GROUP, TOPIC, 11, value));
    }

    private static void classicGroups() {
        ClassicGroup group = new ClassicGroup(new LogContext(), GROUP, ClassicGroupState.PREPARING_REBALANCE, Time.SYSTEM, 41,
            Optional.of("consumer"), Optional.empty(), Optional.empty(), Optional.of(TIME_MS));
        group.add(classicMember("one", Optional.empty(), 300_000, 45_000));
        group.add(classicMember("two", Optional.of("instance-2"), 60_000, 10_000));
        group.setProtocolName(Optional.of("range"));
        Map<String, byte[]> assignments = Map.of("one", new byte[] {1, 2, 3}, "two", new byte[0]);
        write("a classic group", newGroupMetadataRecord(group, assignments));
        ClassicGroup empty = new ClassicGroup(new LogContext(), GROUP, ClassicGroupState.EMPTY, Time.SYSTEM, 42,
            Optional.of("consumer"), Optional.empty(), Optional.empty(), Optional.of(TIME_MS));
        write("a classic group without members", newGroupMetadataRecord(empty, Map.of()));
        write("a new classic group", newEmptyGroupMetadataRecord(empty));
        write("a classic group's tombstone", newGroupMetadataTombstoneRecord(GROUP));
    }

    private static ClassicGroupMember classicMember(String id, Optional<String> instanceId, int rebalance, int session) {
        JoinGroupRequestProtocolCollection protocols = new JoinGroupRequestProtocolCollection();
        protocols.add(new JoinGroupRequestProtocol().setName("range").setMetadata(id.getBytes(StandardCharsets.UTF_8)));
        return new ClassicGroupMember(id, instanceId, "client-" + id, "/10.0.0.1", rebalance, session, "consumer", protocols);
    }

    private static void consumerGroups() {
        write("a consumer group", newConsumerGroupEpochRecord(GROUP, 17, -4_000_000_000_000_000_000L));
        write("a consumer group without a hash", newConsumerGroupEpochRecord(GROUP, 1, 0));
        write("a consumer group's tombstone", newConsumerGroupEpochTombstoneRecord(GROUP));
        write("an assignment epoch",
            newConsumerGroupTargetAssignmentMetadataRecord(GROUP, 16, TIME_MS));
        write("an assignment epoch without a time",
            newConsumerGroupTargetAssignmentMetadataRecord(GROUP, 0, 0));
        write("an assignment epoch's tombstone",
            newConsumerGroupTargetAssignmentMetadataTombstoneRecord(GROUP));
        write("a regular expression", newConsumerGroupRegularExpressionRecord(GROUP, "ord.*|\u00e4",
            new ResolvedRegularExpression(Set.of("orders", "ordinals"), 815, TIME_MS)));
        write("a regular expression's tombstone",
            newConsumerGroupRegularExpressionTombstone(GROUP, "ord.*"));
    }

    private static void members() {
        ConsumerGroupMember.Builder full = new ConsumerGroupMember.Builder(MEMBER)
            .setInstanceId("instance-1").setRackId("rack-a").setClientId("client").setClientHost("/10.0.0.1")
            .setSubscribedTopicNames(List.of("orders", "invoices")).setSubscribedTopicRegex("ord.*")
            .setRebalanceTimeoutMs(300_000).setServerAssignorName("uniform");
        write("a member", subscription(full));
        write("a member with few fields", subscription(
            new ConsumerGroupMember.Builder(MEMBER).setClientId("").setClientHost("").setSubscribedTopicRegex(null)));
        var range = new ConsumerGroupMemberMetadataValue.ClassicProtocol().setName("range").setMetadata(new byte[] {0, 1});
        var sticky = new ConsumerGroupMemberMetadataValue.ClassicProtocol().setName("sticky").setMetadata(new byte[0]);
        write("a member of the classic protocol", subscription(full.setClassicMemberMetadata(
            new ConsumerGroupMemberMetadataValue.ClassicMemberMetadata().setSessionTimeoutMs(45_000)
                .setSupportedProtocols(List.of(range, sticky)))));
        write("a member with empty classic metadata", subscription(full.setClassicMemberMetadata(
            new ConsumerGroupMemberMetadataValue.ClassicMemberMetadata())));
        write("a member's tombstone", newConsumerGroupMemberSubscriptionTombstoneRecord(GROUP, MEMBER));
    }

    private static CoordinatorRecord subscription(ConsumerGroupMember.Builder member) {
        return newConsumerGroupMemberSubscriptionRecord(GROUP, member.build());
    }

    private static void assignments() {
        Map<Uuid, Set<Integer>> target = new TreeMap<>();
        target.put(TOPIC_ID, new TreeSet<>(Set.of(0, 1, 300)));
        target.put(OTHER_ID, new TreeSet<>(Set.of(5)));
        write("a target assignment", newConsumerGroupTargetAssignmentRecord(GROUP, MEMBER, target));
        write("an empty target assignment",
            newConsumerGroupTargetAssignmentRecord(GROUP, MEMBER, Map.of()));
        write("a target assignment's tombstone",
            newConsumerGroupTargetAssignmentTombstoneRecord(GROUP, MEMBER));
        Map<Uuid, Map<Integer, Integer>> assigned = new TreeMap<>(), revoked = new TreeMap<>();
        assigned.put(TOPIC_ID, new TreeMap<>(Map.of(0, 12, 1, 16, 300, 13)));
        assigned.put(OTHER_ID, new TreeMap<>(Map.of(5, 16)));
        revoked.put(TOPIC_ID, new TreeMap<>(Map.of(2, 9)));
        write("a current assignment", current(16, 15, MemberState.UNREVOKED_PARTITIONS, assigned, revoked));
        write("an empty current assignment", current(-2, 3, MemberState.STABLE, Map.of(), Map.of()));
        write("a current assignment's tombstone",
            newConsumerGroupCurrentAssignmentTombstoneRecord(GROUP, MEMBER));
    }

    private static CoordinatorRecord current(
        int epoch, int previous, MemberState state, Map<Uuid, Map<Integer, Integer>> assigned,
        Map<Uuid, Map<Integer, Integer>> revoked
    ) {
        return newConsumerGroupCurrentAssignmentRecord(GROUP, new ConsumerGroupMember.Builder(MEMBER)
            .setMemberEpoch(epoch).setPreviousMemberEpoch(previous).setState(state).setAssignedPartitions(assigned)
            .setPartitionsPendingRevocation(revoked).build());
    }

    // -- what a coordinator has to read -------------------------------------------------------------------------------

    private static void earlierVersions() {
        OffsetCommitKey key = new OffsetCommitKey().setGroup(GROUP).setTopic(TOPIC).setPartition(11);
        for (short version = 0; version <= OffsetCommitValue.HIGHEST_SUPPORTED_VERSION; version++) {
            OffsetCommitValue value = new OffsetCommitValue().setOffset(4711).setLeaderEpoch(3).setMetadata("note")
                .setCommitTimestamp(TIME_MS).setExpireTimestamp(TIME_MS + 1).setTopicId(TOPIC_ID);
            read("OffsetCommitValue " + version, key, value, version);
        }
        LegacyOffsetCommitKey legacyKey = new LegacyOffsetCommitKey().setGroup(GROUP).setTopic(TOPIC).setPartition(11);
        read("LegacyOffsetCommitValue 0", legacyKey,
            new LegacyOffsetCommitValue().setOffset(4711).setMetadata("note").setCommitTimestamp(TIME_MS), (short) 0);
        read("LegacyOffsetCommit tombstone", legacyKey, null, (short) 0);
        for (short version = 0; version <= GroupMetadataValue.HIGHEST_SUPPORTED_VERSION; version++) {
            read("GroupMetadataValue " + version, new GroupMetadataKey().setGroup(GROUP), groupMetadata(), version);
        }
        for (List<Integer> epochs : Arrays.asList(null, List.of(7), List.of(7, 8))) {
            var topic = new ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions().setTopicId(TOPIC_ID)
                .setPartitions(List.of(4, 2)).setAssignmentEpochs(epochs);
            var value = new ConsumerGroupCurrentMemberAssignmentValue().setMemberEpoch(9).setPreviousMemberEpoch(8)
                .setState((byte) 2).setAssignedPartitions(List.of(topic)).setPartitionsPendingRevocation(List.of());
            read("assignment epochs " + epochs, assignmentKey(), value, (short) 0);
        }
        var left = new ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions().setTopicId(TOPIC_ID).setPartitions(List.of(4));
        read("assignment of a static member that left", assignmentKey(), new ConsumerGroupCurrentMemberAssignmentValue()
            .setMemberEpoch(-2).setPreviousMemberEpoch(8).setState((byte) 0).setAssignedPartitions(List.of(left)), (short) 0);
    }

    private static ConsumerGroupCurrentMemberAssignmentKey assignmentKey() {
        return new ConsumerGroupCurrentMemberAssignmentKey().setGroupId(GROUP).setMemberId(MEMBER);
    }

    private static GroupMetadataValue groupMetadata() {
        return new GroupMetadataValue().setProtocolType("consumer").setGeneration(41).setProtocol("range").setLeader("one")
            .setCurrentStateTimestamp(TIME_MS).setMembers(List.of(new GroupMetadataValue.MemberMetadata().setMemberId("one")
                .setGroupInstanceId("instance-1").setClientId("client").setClientHost("/10.0.0.1").setRebalanceTimeout(300_000)
                .setSessionTimeout(45_000).setSubscription(new byte[] {1}).setAssignment(new byte[] {2, 3})));
    }

    private static void unknownTags() {
        OffsetCommitValue offset = new OffsetCommitValue().setOffset(4711).setMetadata("note").setTopicId(TOPIC_ID);
        offset.unknownTaggedFields().add(new RawTaggedField(1, new byte[] {1, 2, 3}));
        offset.unknownTaggedFields().add(new RawTaggedField(4711, new byte[200]));
        read("OffsetCommitValue with unknown tags",
            new OffsetCommitKey().setGroup(GROUP).setTopic(TOPIC).setPartition(11), offset, (short) 4);
        GroupMetadataValue group = groupMetadata();
        group.unknownTaggedFields().add(new RawTaggedField(0, new byte[0]));
        group.members().get(0).unknownTaggedFields().add(new RawTaggedField(9, new byte[] {1}));
        read("GroupMetadataValue with unknown tags", new GroupMetadataKey().setGroup(GROUP), group, (short) 4);
        var topic = new ConsumerGroupTargetAssignmentMemberValue.TopicPartition().setTopicId(TOPIC_ID)
            .setPartitions(List.of(2, 1));
        topic.unknownTaggedFields().add(new RawTaggedField(0, new byte[] {5}));
        var target = new ConsumerGroupTargetAssignmentMemberValue().setTopicPartitions(List.of(topic));
        target.unknownTaggedFields().add(new RawTaggedField(3, new byte[] {5, 6}));
        read("ConsumerGroupTargetAssignmentMemberValue with unknown tags",
            new ConsumerGroupTargetAssignmentMemberKey().setGroupId(GROUP).setMemberId(MEMBER), target, (short) 0);
        var group848 = new ConsumerGroupMetadataValue().setEpoch(5).setMetadataHash(6);
        group848.unknownTaggedFields().add(new RawTaggedField(1, new byte[] {5, 6}));
        read("ConsumerGroupMetadataValue with unknown tags",
            new ConsumerGroupMetadataKey().setGroupId(GROUP), group848, (short) 0);
    }

    private static void otherTypes() {
        read("type 4",
            new ConsumerGroupPartitionMetadataKey().setGroupId(GROUP), new ConsumerGroupPartitionMetadataValue(), (short) 0);
        read("type 10", new ShareGroupMemberMetadataKey().setGroupId(GROUP).setMemberId(MEMBER), null, (short) 0);
        read("type 11", new ShareGroupMetadataKey().setGroupId(GROUP), new ShareGroupMetadataValue().setEpoch(1), (short) 0);
        read("type 17", new StreamsGroupMetadataKey().setGroupId(GROUP), new StreamsGroupMetadataValue().setEpoch(1), (short) 0);
        read("type 23", new StreamsGroupTopologyKey().setGroupId(GROUP), null, (short) 0);
    }

    // -- output -------------------------------------------------------------------------------------------------------

    private static void write(String name, CoordinatorRecord record) {
        written.put(name, bytes(record));
    }

    private static void read(String name, ApiMessage key, ApiMessage value, short version) {
        read.put(name, bytes(value == null ? CoordinatorRecord.tombstone(key)
            : CoordinatorRecord.record(key, new ApiMessageAndVersion(value, version))));
    }

    private static String bytes(CoordinatorRecord record) {
        byte[] value = SERDE.serializeValue(record);
        return "[\"" + hex(SERDE.serializeKey(record)) + "\", " + (value == null ? "null" : "\"" + hex(value) + "\"") + "]";
    }

    private static String hex(byte[] data) {
        StringBuilder hex = new StringBuilder();
        for (byte b : data) hex.append(String.format("%02x", b));
        return hex.toString();
    }

    private static String rows(Map<String, String> records) {
        List<String> rows = new ArrayList<>();
        records.forEach((name, record) -> rows.add(json(name) + ": " + record));
        return String.join(",\n", rows);
    }

    private static String json(String text) {
        StringBuilder json = new StringBuilder("\"");
        for (char c : text.toCharArray()) json.append(c < 0x80 ? String.valueOf(c) : String.format("\\u%04x", (int) c));
        return json.append("\"").toString();
    }
}
