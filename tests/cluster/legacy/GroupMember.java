import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import kafka.consumer.Blacklist;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerTimeoutException;
import kafka.consumer.KafkaStream;
import kafka.consumer.TopicFilter;
import kafka.consumer.Whitelist;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.message.MessageAndMetadata;

/**
 * A process that joins a consumer group with the original Scala connector and reports what it consumes.
 *
 * Arguments are name=value pairs. Those whose name begins with "member." are for this class, all others are properties
 * of the connector:
 *   member.topics=t:2,u:1     streams by topic
 *   member.whitelist=REGEX or member.blacklist=REGEX, with member.streams=N
 *   member.mode=lines|count|latency   report each message, or only totals at the end, or also how old each one was
 *   member.report=FILE        with mode latency, written at the end: "late STAMP NANOSECONDS" a message, whose value
 *                             begins with the time (System.nanoTime, eight bytes) at which it was produced; with mode
 *                             count "mark MESSAGES SECONDS" for each tenth of member.stop.after
 *   member.pause.ms=N         after each message
 *   member.stop.after=N       leave cleanly once N messages were consumed in all
 *
 * Standard output: "ready" once the streams exist; with mode lines "m TOPIC PARTITION OFFSET KEY VALUE" a message, key
 * and value in base64 or "-" for null; at a clean end "end MESSAGES BYTES SECONDS", the time from the first to the last.
 * SIGTERM is a clean end.
 */
public final class GroupMember {
  private static final AtomicLong MESSAGES = new AtomicLong();
  private static final AtomicLong BYTES = new AtomicLong();
  private static final AtomicLong FIRST = new AtomicLong();
  private static final AtomicLong LAST = new AtomicLong();
  private static final CountDownLatch END = new CountDownLatch(1);

  private static PrintStream out;
  private static boolean lines;
  private static boolean stamped;
  private static String report;
  private static final List<String> REPORT = Collections.synchronizedList(new ArrayList<>());
  private static long pauseMs;
  private static long stopAfter;

  public static void main(String[] arguments) throws Exception {
    Properties own = new Properties();
    Properties connectorProperties = new Properties();
    for (String argument : arguments) {
      String[] pair = argument.split("=", 2);
      (pair[0].startsWith("member.") ? own : connectorProperties).setProperty(pair[0], pair[1]);
    }
    lines = own.getProperty("member.mode", "lines").equals("lines");
    stamped = own.getProperty("member.mode", "lines").equals("latency");
    report = own.getProperty("member.report");
    pauseMs = Long.parseLong(own.getProperty("member.pause.ms", "0"));
    stopAfter = Long.parseLong(own.getProperty("member.stop.after", String.valueOf(Long.MAX_VALUE)));
    out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, "US-ASCII");

    ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(connectorProperties));
    Runtime.getRuntime().addShutdownHook(new Thread(() -> leave(connector), "leave"));
    List<KafkaStream<byte[], byte[]>> streams = open(connector, own);
    say("ready");
    List<Thread> readers = new ArrayList<>();
    for (KafkaStream<byte[], byte[]> stream : streams) {
      Runnable loop = stopAfter < Long.MAX_VALUE && !lines && !stamped && pauseMs == 0
          ? () -> count(stream)
          : () -> read(stream);
      Thread reader = new Thread(loop, "reader-" + readers.size());
      reader.setDaemon(true);
      reader.start();
      readers.add(reader);
    }
    Thread watcher = new Thread(() -> {
      for (Thread reader : readers) joinQuietly(reader);
      END.countDown();
    }, "watcher");
    watcher.setDaemon(true);
    watcher.start();
    END.await();
    System.exit(0);
  }

  private static List<KafkaStream<byte[], byte[]>> open(ConsumerConnector connector, Properties own) {
    if (own.containsKey("member.topics")) {
      Map<String, Integer> counts = new HashMap<>();
      for (String entry : own.getProperty("member.topics").split(",")) {
        int colon = entry.lastIndexOf(':');
        counts.put(entry.substring(0, colon), Integer.valueOf(entry.substring(colon + 1)));
      }
      List<KafkaStream<byte[], byte[]>> all = new ArrayList<>();
      connector.createMessageStreams(counts).values().forEach(all::addAll);
      return all;
    }
    TopicFilter filter =
        own.containsKey("member.whitelist")
            ? new Whitelist(own.getProperty("member.whitelist"))
            : new Blacklist(own.getProperty("member.blacklist"));
    int count = Integer.parseInt(own.getProperty("member.streams", "1"));
    return connector.createMessageStreamsByFilter(filter, count);
  }

  private static void read(KafkaStream<byte[], byte[]> stream) {
    try {
      for (MessageAndMetadata<byte[], byte[]> message : stream) {
        byte[] value = message.message();
        long now = System.nanoTime();
        FIRST.compareAndSet(0, now);
        LAST.set(now);
        BYTES.addAndGet(value == null ? 0 : value.length);
        if (stamped) {
          long stamp = ByteBuffer.wrap(value).getLong();
          REPORT.add("late " + stamp + " " + (now - stamp));
        }
        if (lines) {
          say("m " + message.topic() + " " + message.partition() + " " + message.offset()
              + " " + text(message.key()) + " " + text(value));
        }
        if (pauseMs > 0) Thread.sleep(pauseMs);
        if (MESSAGES.incrementAndGet() == stopAfter) END.countDown();
      }
    } catch (ConsumerTimeoutException quiet) {
      // consumer.timeout.ms was set: this stream is read to its end
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  /** A measured loop: the value's length, one count, and the clock only at each tenth of the whole. */
  private static void count(KafkaStream<byte[], byte[]> stream) {
    long tenth = Math.max(stopAfter / 10, 1);
    try {
      for (MessageAndMetadata<byte[], byte[]> message : stream) {
        byte[] value = message.message();
        BYTES.addAndGet(value == null ? 0 : value.length);
        long messages = MESSAGES.incrementAndGet();
        if (messages == 1) FIRST.set(System.nanoTime());
        if (messages % tenth == 0 || messages == stopAfter) {
          long now = System.nanoTime();
          LAST.accumulateAndGet(now, Math::max);
          REPORT.add("mark " + messages + " " + (now - FIRST.get()) / 1e9);
        }
        if (messages == stopAfter) END.countDown();
      }
    } catch (ConsumerTimeoutException quiet) {
      // as in read()
    }
  }

  private static void leave(ConsumerConnector connector) {
    connector.shutdown();
    if (report != null) {
      try {
        Files.write(Paths.get(report), new ArrayList<>(REPORT), StandardCharsets.US_ASCII);
      } catch (IOException failure) {
        System.err.println("cannot write " + report + ": " + failure);
      }
    }
    say("end " + MESSAGES.get() + " " + BYTES.get() + " " + (LAST.get() - FIRST.get()) / 1e9);
  }

  private static String text(byte[] bytes) {
    if (bytes == null) return "-";
    return "=" + new String(Base64.getEncoder().withoutPadding().encode(bytes), StandardCharsets.US_ASCII);
  }

  private static void say(String line) {
    synchronized (out) {
      out.print(line + "\n");
      out.flush();
    }
  }

  private static void joinQuietly(Thread thread) {
    try {
      thread.join();
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }
}
