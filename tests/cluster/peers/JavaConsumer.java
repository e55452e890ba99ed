import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A process that joins a consumer group with the Java consumer and reports what it consumes.
 *
 * Arguments are name=value pairs. Those whose name begins with "member." are for this class, all others are the
 * consumer's own:
 *   member.topics=t,u
 *   member.mode=lines|count|latency   as in GroupMember.java. With lines, what was handed out is committed after each
 *                                     poll, and before partitions are given up; otherwise the consumer commits itself
 *   member.report=FILE, member.stop.after=N   as in GroupMember.java
 *   member.warm.up=PASSES     so many times all N messages are read before "ready", which are not counted
 *
 * Standard output: "ready" once it polls; "m TOPIC PARTITION OFFSET KEY VALUE" a message, key and value in base64 after an
 * equals sign or "-" for null; "owns GENERATION MEMBER TOPIC-PARTITION..." after each change; "lost TOPIC-PARTITION..."; at a
 * clean end "end MESSAGES BYTES SECONDS". SIGTERM is a clean end.
 */
public final class JavaConsumer implements ConsumerRebalanceListener {
  private final KafkaConsumer<byte[], byte[]> consumer;
  private final Map<TopicPartition, OffsetAndMetadata> done = new HashMap<>();
  private final PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true);

  private JavaConsumer(Properties properties) {
    consumer = new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  public static void main(String[] arguments) throws Exception {
    Properties own = new Properties();
    Properties properties = new Properties();
    for (String argument : arguments) {
      String[] pair = argument.split("=", 2);
      (pair[0].startsWith("member.") ? own : properties).setProperty(pair[0], pair[1]);
    }
    boolean lines = own.getProperty("member.mode", "lines").equals("lines");
    properties.setProperty("enable.auto.commit", String.valueOf(!lines));
    JavaConsumer member = new JavaConsumer(properties);
    if (!lines) {
      member.measure(own);
      return;
    }
    CountDownLatch ended = new CountDownLatch(1);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      member.consumer.wakeup();
      try {
        ended.await();
      } catch (InterruptedException interrupted) {
        Thread.currentThread().interrupt();
      }
    }, "leave"));
    try {
      member.run(List.of(own.getProperty("member.topics").split(",")));
    } finally {
      ended.countDown();
    }
  }

  private void run(Collection<String> topics) {
    long messages = 0;
    long bytes = 0;
    consumer.subscribe(topics, this);
    out.println("ready");
    try {
      while (true) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
          out.println("m " + record.topic() + " " + record.partition() + " " + record.offset() + " " + text(record.key())
              + " " + text(record.value()));
          done.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
          messages++;
          bytes += record.value() == null ? 0 : record.value().length;
        }
        commit();
      }
    } catch (WakeupException end) {
      consumer.close(Duration.ofSeconds(5));
      out.println("end " + messages + " " + bytes + " 0");
    }
  }

  private void measure(Properties own) throws Exception {
    boolean stamped = own.getProperty("member.mode").equals("latency");
    long total = Long.parseLong(own.getProperty("member.stop.after"));
    List<String> report = new ArrayList<>();
    consumer.subscribe(List.of(own.getProperty("member.topics").split(",")));
    for (int passes = Integer.parseInt(own.getProperty("member.warm.up", "0")); passes > 0; passes--) {
      pass(total, stamped, report);
      report.clear();
      consumer.seekToBeginning(consumer.assignment());
    }
    out.println("ready");
    String found = pass(total, stamped, report);
    consumer.close(Duration.ofSeconds(5));
    if (own.containsKey("member.report")) {
      Files.write(Paths.get(own.getProperty("member.report")), report, StandardCharsets.US_ASCII);
    }
    out.println("end " + found);
  }

  /** A measured loop: the value's length, one count, and the clock only at each tenth of the whole or for each age. */
  private String pass(long total, boolean stamped, List<String> report) {
    long tenth = Math.max(total / 10, 1);
    long messages = 0;
    long bytes = 0;
    long first = 0;
    long last = 0;
    while (messages < total) {
      for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
        byte[] value = record.value();
        bytes += value == null ? 0 : value.length;
        messages++;
        if (messages == 1) first = System.nanoTime();
        if (stamped) {
          long stamp = ByteBuffer.wrap(value).getLong();
          report.add("late " + stamp + " " + (System.nanoTime() - stamp));
        }
        if (messages % tenth == 0 || messages == total) {
          last = System.nanoTime();
          if (!stamped) report.add("mark " + messages + " " + (last - first) / 1e9);
        }
        if (messages == total) break;
      }
    }
    return messages + " " + bytes + " " + (last - first) / 1e9;
  }

  private void commit() {
    if (done.isEmpty()) return;
    try {
      consumer.commitSync(done);
      done.clear();
    } catch (RebalanceInProgressException joining) {
      // still ours: committed after the rebalance, or before what is taken from us is given up
    }
  }

  @Override
  public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
    commit();
    done.keySet().removeAll(partitions);
  }

  @Override
  public void onPartitionsLost(Collection<TopicPartition> partitions) {
    done.keySet().removeAll(partitions);
    if (!partitions.isEmpty()) out.println("lost " + names(partitions));
  }

  @Override
  public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
    out.println("owns " + consumer.groupMetadata().generationId() + " " + consumer.groupMetadata().memberId() + " "
        + names(consumer.assignment()));
  }

  private static String names(Collection<TopicPartition> partitions) {
    TreeSet<String> names = new TreeSet<>();
    for (TopicPartition partition : partitions) names.add(partition.toString());
    return String.join(" ", names);
  }

  private static String text(byte[] data) {
    return data == null ? "-" : "=" + Base64.getEncoder().withoutPadding().encodeToString(data);
  }
}
