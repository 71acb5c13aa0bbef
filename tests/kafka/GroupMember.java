import java.io.FileOutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

/** A member of a group that writes what it does, as tests/processes/group_member.py does: BOOTSTRAP TOPIC GROUP FILE PROTOCOL. */
public class GroupMember implements ConsumerRebalanceListener {
    final FileOutputStream file;
    KafkaConsumer<String, String> consumer;

    GroupMember(String path) throws Exception {
        file = new FileOutputStream(path, true);
    }

    void note(String what, String more) {
        int epoch = consumer == null ? 0 : Math.max(0, consumer.groupMetadata().generationId());
        String line = String.format("{\"at\": %.6f, \"do\": \"%s\", \"epoch\": %d%s}%n", System.nanoTime() / 1e9, what, epoch, more);
        try {
            file.write(line.getBytes(StandardCharsets.UTF_8));
        } catch (java.io.IOException e) {
            throw new RuntimeException(e);
        }
    }

    static String list(Collection<TopicPartition> partitions) {
        return ", \"partitions\": " + partitions.stream().map(TopicPartition::partition).collect(Collectors.toList());
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        note("assigned", list(partitions));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        note("revoked", list(partitions));
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        note("lost", list(partitions));
    }

    static String number(String value) {
        return value.substring(value.indexOf('/') + 1).split(" ")[0];
    }

    void handle(ConsumerRecords<String, String> records) {
        Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        for (TopicPartition partition : records.partitions()) {
            List<ConsumerRecord<String, String>> batch = records.records(partition);
            long first = batch.get(0).offset();
            long next = batch.get(batch.size() - 1).offset() + 1;
            List<String> numbers = batch.stream().map(record -> number(record.value())).collect(Collectors.toList());
            note("records", String.format(", \"partition\": %d, \"numbers\": %s, \"first\": %d, \"next\": %d",
                partition.partition(), numbers, first, next));
            positions.put(partition, new OffsetAndMetadata(next));
        }
        try {
            if (!positions.isEmpty()) {
                consumer.commitSync(positions, Duration.ofSeconds(20));
            }
        } catch (WakeupException e) {
            throw e;
        } catch (RuntimeException e) {
            note("commit failed", ", \"reason\": \"" + e.getClass().getSimpleName() + "\"");
        }
    }

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[2]);
        settings.put("group.protocol", args[4]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("max.poll.records", "200");
        if (args[4].equals("classic")) {
            settings.put("session.timeout.ms", "6000");
            settings.put("heartbeat.interval.ms", "500");
        }
        GroupMember member = new GroupMember(args[3]);
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.wakeup();
            try {
                main.join(20_000);
            } catch (InterruptedException e) {
                return;
            }
            Runtime.getRuntime().halt(0);
        }));
        member.consumer = consumer;
        consumer.subscribe(List.of(args[1]), member);
        try {
            while (true) {
                member.handle(consumer.poll(Duration.ofMillis(200)));
            }
        } catch (WakeupException e) {
            consumer.close();
            member.consumer = null;
            member.note("ended", "");
        }
    }
}
