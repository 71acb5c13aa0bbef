import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** An idempotent producer: sends each line "PARTITION VALUE" of its input, and prints "OFFSET VALUE", or "- VALUE error". */
public class JavaLoad {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("delivery.timeout.ms", "180000");
        KafkaProducer<String, String> producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            int space = line.indexOf(' ');
            String value = line.substring(space + 1);
            producer.send(new ProducerRecord<>(args[1], Integer.parseInt(line.substring(0, space)), null, value), (done, error) -> {
                synchronized (System.out) {
                    System.out.println((error == null ? done.offset() : "-") + " " + value);
                    System.out.flush();
                }
            });
        }
        producer.close();
    }
}
