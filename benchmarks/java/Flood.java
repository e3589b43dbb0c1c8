import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SizeUnit;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Producers and consumers of one topic in this process, with Pulsar's Java client. Argument: the service URL. Each line
 * on stdin: topic, messages, producers, consumers, bytes and properties of a message; it is answered by a line of JSON
 * when all of them were received and acknowledged. Times in seconds, cpu that of this process.
 */
public final class Flood {
    private static final int PAYLOADS = 1024;

    public static void main(String[] args) throws Exception {
        try (PulsarClient client = PulsarClient.builder()
                .serviceUrl(args[0])
                .memoryLimit(256, SizeUnit.MEGA_BYTES)
                .build()) {
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
            System.out.println("{\"ready\": true}");
            for (String line; (line = in.readLine()) != null;) {
                String[] words = line.split(" ");
                System.out.println(flood(client, words[0], Integer.parseInt(words[1]), Integer.parseInt(words[2]),
                        Integer.parseInt(words[3]), Integer.parseInt(words[4]), Integer.parseInt(words[5])));
            }
        }
        System.exit(0);
    }

    private static String flood(PulsarClient client, String topic, int messages, int producers, int consumers, int size,
            int properties) throws Exception {
        AtomicLong received = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        CountDownLatch all = new CountDownLatch(1);
        List<Consumer<byte[]>> sinks = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < consumers; number++) {
            Consumer<byte[]> sink = consumer(client, topic);
            sinks.add(sink);
            threads.add(new Thread(() -> drain(sink, received, messages, all)));
        }
        List<Producer<byte[]>> sources = new ArrayList<>();
        for (int number = 0; number < producers; number++) {
            Producer<byte[]> source = producer(client, topic);
            sources.add(source);
            int share = messages / producers + (number < messages % producers ? 1 : 0);
            int seed = number;
            threads.add(new Thread(() -> publish(source, share, seed, size, properties, failed)));
        }
        double cpu = cpu();
        double began = now();
        threads.forEach(Thread::start);
        boolean whole = all.await(10, TimeUnit.MINUTES);
        double ended = now();
        cpu = cpu() - cpu;
        for (Thread thread : threads) {
            thread.join();
        }
        for (Producer<byte[]> source : sources) {
            source.close();
        }
        for (Consumer<byte[]> sink : sinks) {
            sink.close();
        }
        return String.format(Locale.ROOT,
                "{\"received\": %d, \"failed\": %d, \"whole\": %b, \"began\": %.6f, \"ended\": %.6f, \"cpu\": %.3f}",
                received.get(), failed.get(), whole, began, ended, cpu);
    }

    private static Consumer<byte[]> consumer(PulsarClient client, String topic) throws PulsarClientException {
        return client.newConsumer()
                .topic(topic)
                .subscriptionName("sink")
                .subscriptionType(SubscriptionType.Key_Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .receiverQueueSize(10_000)
                .maxTotalReceiverQueueSizeAcrossPartitions(1_000_000)
                .subscribe();
    }

    private static Producer<byte[]> producer(PulsarClient client, String topic) throws PulsarClientException {
        return client.newProducer()
                .topic(topic)
                .batcherBuilder(BatcherBuilder.KEY_BASED)
                .batchingMaxMessages(10_000)
                .batchingMaxBytes(1_000_000)
                .batchingMaxPublishDelay(10, TimeUnit.MILLISECONDS)
                .blockIfQueueFull(true)
                .maxPendingMessages(20_000)
                .maxPendingMessagesAcrossPartitions(1_000_000)
                .sendTimeout(0, TimeUnit.SECONDS)
                .create();
    }

    private static void publish(Producer<byte[]> source, int messages, int seed, int size, int properties,
            AtomicLong failed) {
        Random random = new Random(seed);
        byte[][] payloads = new byte[PAYLOADS][size];
        for (byte[] payload : payloads) {
            random.nextBytes(payload);
        }
        int[] keys = Keys.drawn(messages, random);
        for (int number = 0; number < messages; number++) {
            var message = source.newMessage().key(Keys.NAMES[keys[number]]).value(payloads[number % PAYLOADS]);
            for (int property = 0; property < properties; property++) {
                message.property("name-" + property, "value-" + number % 100);
            }
            message.sendAsync().exceptionally(error -> {
                failed.incrementAndGet();
                return null;
            });
        }
    }

    private static void drain(Consumer<byte[]> sink, AtomicLong received, int messages, CountDownLatch all) {
        try {
            while (all.getCount() > 0) {
                Message<byte[]> message = sink.receive(200, TimeUnit.MILLISECONDS); // close wakes nobody who waits
                if (message != null) {
                    sink.acknowledgeAsync(message);
                    if (received.incrementAndGet() == messages) {
                        all.countDown();
                    }
                }
            }
        } catch (PulsarClientException error) {
            throw new IllegalStateException(error);
        }
    }

    private static double cpu() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    private static double now() {
        var at = java.time.Instant.now();
        return at.getEpochSecond() + at.getNano() / 1e9;
    }

    /** Ten thousand names, of which the n-th is drawn in proportion to n to the power of -1.2. */
    private static final class Keys {
        static final String[] NAMES = new String[10_000];
        private static final double[] UP_TO = new double[NAMES.length];

        static {
            double sum = 0;
            for (int number = 0; number < NAMES.length; number++) {
                NAMES[number] = String.format("key-%06d", number);
                sum += Math.pow(number + 1, -1.2);
                UP_TO[number] = sum;
            }
        }

        static int[] drawn(int count, Random random) {
            int[] keys = new int[count];
            for (int number = 0; number < count; number++) {
                int at = java.util.Arrays.binarySearch(UP_TO, random.nextDouble() * UP_TO[UP_TO.length - 1]);
                keys[number] = Math.min(at < 0 ? -at - 1 : at, NAMES.length - 1);
            }
            return keys;
        }
    }
}
