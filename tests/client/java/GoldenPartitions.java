package org.apache.kafka.clients.producer.internals;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Utils;

/**
 * Prints the partitions that Kafka's own classes choose, as the JSON that tests/client/golden_partitions.json holds. LIBS is a
 * folder with Kafka's jars:
 *
 *   javac -cp "$LIBS/*" -d /tmp/golden tests/client/java/GoldenPartitions.java
 *   java -cp "/tmp/golden:$LIBS/*" org.apache.kafka.clients.producer.internals.GoldenPartitions > tests/client/golden_partitions.json
 *
 * It is in Kafka's package because BuiltInPartitioner shows its sticky partition, and the random number behind it, only there.
 */
public class GoldenPartitions {
    private static final int[] COUNTS = {1, 2, 3, 7, 12, 50, 1000};
    private static final String[] TEXTS = {
        "", "a", "ab", "abc", "abcd", "21", "foobar", "alice", "order-4711", "a-little-bit-long-string",
        "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", "\u00e4\u00f6\u00fc", "\u6f22\u5b57", "\ud83c\udf0a"};
    private static final int[][] AVAILABLE = {{0, 1, 2, 3, 4}, {0, 2, 3}, {4}, {}};
    private static final int[] RANDOM = {0, 1, 2, 3, 4, 5, 11, 1_000_003, Integer.MAX_VALUE};
    private static final int PARTITIONS = 5;

    private static long state = 4711;

    private static int next() {
        state = state * 6364136223846793005L + 1442695040888963407L;
        return (int) (state >>> 33);
    }

    public static void main(String[] args) throws Exception {
        List<byte[]> keys = new ArrayList<>();
        for (String text : TEXTS) keys.add(text.getBytes("UTF-8"));
        for (int length = 0; length < 40; length++) {
            for (int copy = 0; copy < 4; copy++) {
                byte[] key = new byte[length];
                for (int i = 0; i < length; i++) key[i] = (byte) (copy == 0 ? 0xff : next());
                keys.add(key);
            }
        }
        List<String> rows = new ArrayList<>();
        for (byte[] key : keys) rows.add(keyed(key));
        List<String> sticky = new ArrayList<>();
        for (int[] available : AVAILABLE) for (int random : RANDOM) sticky.add(sticky(available, random));
        System.out.println("{\"partition_counts\": [1, 2, 3, 7, 12, 50, 1000],");
        System.out.println("\"keys\": [\n" + String.join(",\n", rows) + "\n],");
        System.out.println("\"sticky\": [\n" + String.join(",\n", sticky) + "\n]}");
    }

    private static String keyed(byte[] key) {
        StringBuilder hex = new StringBuilder();
        for (byte b : key) hex.append(String.format("%02x", b));
        List<String> partitions = new ArrayList<>();
        for (int count : COUNTS) partitions.add(String.valueOf(BuiltInPartitioner.partitionForKey(key, count)));
        return "[\"" + hex + "\", " + Utils.murmur2(key) + ", " + partitions + "]";
    }

    private static String sticky(int[] available, int random) {
        Node alive = new Node(1, "localhost", 9092);
        List<PartitionInfo> infos = new ArrayList<>();
        List<String> names = new ArrayList<>();
        for (int partition = 0; partition < PARTITIONS; partition++) {
            boolean isLed = false;
            for (int one : available) isLed |= one == partition;
            infos.add(new PartitionInfo("t", partition, isLed ? alive : null, new Node[] {alive}, new Node[] {alive}));
        }
        for (int one : available) names.add(String.valueOf(one));
        Cluster cluster = new Cluster("c", List.of(alive), infos, Set.of(), Set.of());
        BuiltInPartitioner partitioner = new BuiltInPartitioner(new LogContext(), "t", 16384) {
            @Override
            int randomPartition() {
                return random;
            }
        };
        return "[" + names + ", " + random + ", " + partitioner.peekCurrentPartitionInfo(cluster).partition() + "]";
    }
}
