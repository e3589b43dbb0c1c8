import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.api.TopicMessageId;

/**
 * Pulsar's Java client, unchanged, against the broker at a URL. One line a scene: its name, and "ok" or what was wrong.
 *
 * <pre>Scenes URL GUARDED_URL TOKEN     the second broker wants the token</pre>
 *
 * Topic `parts` has three partitions. `JavaStringHash` and `Murmur3_32Hash` have five, and a message of each key of KEYS.
 */
public final class Scenes {
    interface Scene {
        void play(PulsarClient client) throws Exception;
    }

    public static class Order {
        public String item;
        public int count;

        public Order() {}

        Order(String item, int count) {
            this.item = item;
            this.count = count;
        }
    }

    private static final int PATIENCE_S = 60;
    private static final List<String> KEYS = List.of("a", "key-1", "key-2", "key-3", "key-4", "key-5", "välkommen", "😀");
    private static final Map<String, Scene> SCENES = new LinkedHashMap<>();

    public static void main(String[] args) throws Exception {
        SCENES.put("produce_and_consume", Scenes::produceAndConsume);
        SCENES.put("partitions", Scenes::partitions);
        SCENES.put("one_partition_a_key", Scenes::onePartitionAKey);
        SCENES.put("key_shared_with_joins", Scenes::keySharedWithJoins);
        SCENES.put("delayed", Scenes::delayed);
        SCENES.put("given_back", Scenes::givenBack);
        SCENES.put("dead_letter", Scenes::deadLetter);
        SCENES.put("retry_topic", Scenes::retryTopic);
        SCENES.put("seek", Scenes::seek);
        SCENES.put("reader", Scenes::reader);
        SCENES.put("pattern", Scenes::pattern);
        SCENES.put("schemas", Scenes::schemas);
        SCENES.put("receipts_of_single_messages", Scenes::receiptsOfSingleMessages);
        SCENES.put("active_consumer", Scenes::activeConsumer);
        SCENES.put("table_view", Scenes::tableView);
        SCENES.put("more_partitions", client -> morePartitions(client, args[0]));
        SCENES.put("terminated", client -> terminated(client, args[0]));
        SCENES.put("token", client -> token(args[1], args[2]));
        SCENES.put("transactions_are_refused", client -> transactionsAreRefused(args[0]));
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            for (Map.Entry<String, Scene> each : SCENES.entrySet()) {
                String said = "ok";
                try {
                    each.getValue().play(client);
                } catch (Throwable wrong) {
                    said = wrong.toString().replace('\n', ' ') + " at " + where(wrong);
                }
                System.out.println(each.getKey() + " " + said);
            }
        }
        System.exit(0);
    }

    private static String where(Throwable wrong) {
        for (StackTraceElement each : wrong.getStackTrace()) {
            if (each.getClassName().startsWith("Scenes")) {
                return each.toString();
            }
        }
        return "?";
    }

    private static void check(boolean right, String what) {
        if (!right) {
            throw new AssertionError(what);
        }
    }

    private static ConsumerBuilder<byte[]> subscription(PulsarClient client, String topic, SubscriptionType type) {
        return client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    private static <T> Message<T> next(Consumer<T> consumer) throws PulsarClientException {
        Message<T> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
        check(message != null, "nothing came");
        return message;
    }

    private static List<MessageId> send(Producer<byte[]> producer, String... payloads) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (String payload : payloads) {
            sent.add(producer.sendAsync(payload.getBytes(StandardCharsets.UTF_8)));
        }
        producer.flush();
        List<MessageId> ids = new ArrayList<>();
        for (CompletableFuture<MessageId> each : sent) {
            ids.add(each.get(PATIENCE_S, TimeUnit.SECONDS));
        }
        return ids;
    }

    private static String text(Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    private static void produceAndConsume(PulsarClient client) throws Exception {
        try (Consumer<byte[]> consumer = subscription(client, "plain", SubscriptionType.Exclusive).subscribe();
                Producer<byte[]> producer = client.newProducer().topic("plain").producerName("till")
                        .compressionType(CompressionType.LZ4).create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int i = 0; i < 100; i++) {
                sent.add(producer.newMessage().key("k" + i % 7).orderingKey(new byte[] {(byte) i, -1}).eventTime(1 + i)
                        .property("number", "" + i).value(i == 50 ? null : new byte[] {(byte) i}).sendAsync());
            }
            producer.flush();
            for (int i = 0; i < 100; i++) {
                Message<byte[]> message = next(consumer);
                check(message.getMessageId().equals(sent.get(i).get()), "another id");
                check(message.getKey().equals("k" + i % 7) && message.getOrderingKey()[0] == i, "another key");
                check(message.getEventTime() == 1 + i && message.getProperty("number").equals("" + i), "other fields");
                check(i == 50 ? message.getData() == null : message.getData()[0] == i, "another payload");
                check(message.getProducerName().equals("till") && message.getSequenceId() == i, "another sequence");
                consumer.acknowledge(message);
            }
        }
    }

    private static void partitions(PulsarClient client) throws Exception {
        check(client.getPartitionsForTopic("parts").get().size() == 3, "other partitions");
        try (Consumer<byte[]> consumer = subscription(client, "parts", SubscriptionType.Shared).subscribe();
                Producer<byte[]> producer = client.newProducer().topic("parts").create()) {
            Set<MessageId> sent = new HashSet<>();
            for (int i = 0; i < 60; i++) {
                sent.add(producer.newMessage().key("k" + i).value(new byte[] {1}).send());
            }
            for (int i = 0; i < 60; i++) {
                Message<byte[]> message = next(consumer);
                check(sent.remove(message.getMessageId()), "an id that was not sent");
                consumer.acknowledge(message);
            }
        }
    }

    private static void onePartitionAKey(PulsarClient client) throws Exception {
        for (HashingScheme scheme : List.of(HashingScheme.JavaStringHash, HashingScheme.Murmur3_32Hash)) {
            String topic = scheme.name();
            try (Consumer<byte[]> consumer = subscription(client, topic, SubscriptionType.Exclusive).subscribe();
                    Producer<byte[]> producer = client.newProducer().topic(topic).hashingScheme(scheme).create()) {
                Map<String, Set<Integer>> homes = new HashMap<>();
                for (String key : KEYS) {
                    producer.newMessage().key(key).value(new byte[] {1}).send();
                }
                for (int i = 0; i < 2 * KEYS.size(); i++) {
                    Message<byte[]> message = next(consumer);
                    int home = ((TopicMessageId) message.getMessageId()).getOwnerTopic().hashCode();
                    homes.computeIfAbsent(message.getKey(), key -> new HashSet<>()).add(home);
                }
                check(homes.size() == KEYS.size(), "other keys " + homes.keySet());
                check(homes.values().stream().allMatch(each -> each.size() == 1), scheme + " puts keys elsewhere");
                check(new HashSet<>(homes.values()).size() > 1, "one partition only");
            }
        }
    }

    private static void keySharedWithJoins(PulsarClient client) throws Exception {
        Map<String, List<Integer>> came = new HashMap<>();
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        try (Producer<byte[]> producer = client.newProducer().topic("keys").batcherBuilder(BatcherBuilder.KEY_BASED)
                .batchingMaxPublishDelay(2, TimeUnit.MILLISECONDS).create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int round = 0; round < 4; round++) {
                if (round < 3) {
                    consumers.add(subscription(client, "keys", SubscriptionType.Key_Shared).receiverQueueSize(20)
                            .acknowledgmentGroupTime(0, TimeUnit.SECONDS).subscribe());
                } else {
                    consumers.remove(0).close();
                }
                for (int i = 0; i < 200; i++) {
                    byte[] number = Integer.toString(round * 200 + i).getBytes(StandardCharsets.UTF_8);
                    sent.add(producer.newMessage().key("k" + i % 20).value(number).sendAsync());
                }
                take(consumers, came, 100 * (round + 1));
            }
            producer.flush();
            for (CompletableFuture<MessageId> each : sent) {
                each.get(PATIENCE_S, TimeUnit.SECONDS);
            }
            take(consumers, came, 800);
        } finally {
            for (Consumer<byte[]> each : consumers) {
                each.close();
            }
        }
        for (List<Integer> numbers : came.values()) {
            List<Integer> firsts = new ArrayList<>(new java.util.LinkedHashSet<>(numbers));
            check(firsts.size() == 40 && firsts.equals(new ArrayList<>(new TreeSet<>(firsts))), "a key out of order");
        }
    }

    /** Receive and acknowledge, of all consumers in turn, until so many different messages have come. */
    private static void take(List<Consumer<byte[]>> consumers, Map<String, List<Integer>> came, int count)
            throws Exception {
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (came.values().stream().mapToInt(each -> new HashSet<>(each).size()).sum() < count) {
            check(System.nanoTime() < until, "not everything came");
            for (Consumer<byte[]> each : consumers) {
                Message<byte[]> message = each.receive(20, TimeUnit.MILLISECONDS);
                if (message != null) {
                    came.computeIfAbsent(message.getKey(), key -> new ArrayList<>()).add(Integer.parseInt(text(message)));
                    each.acknowledge(message);
                }
            }
        }
    }

    private static void delayed(PulsarClient client) throws Exception {
        try (Consumer<byte[]> consumer = subscription(client, "late", SubscriptionType.Shared).subscribe();
                Producer<byte[]> producer = client.newProducer().topic("late").create()) {
            long due = System.currentTimeMillis() + 1500;
            producer.newMessage().deliverAt(due).value("late".getBytes(StandardCharsets.UTF_8)).send();
            send(producer, "now");
            check(text(next(consumer)).equals("now"), "the delayed one came first");
            check(text(next(consumer)).equals("late") && System.currentTimeMillis() >= due, "too early");
        }
    }

    private static void givenBack(PulsarClient client) throws Exception {
        try (Consumer<byte[]> consumer = subscription(client, "back", SubscriptionType.Shared)
                        .negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).subscribe();
                Producer<byte[]> producer = client.newProducer().topic("back").create()) {
            send(producer, "a");
            for (int count = 0; count < 3; count++) {
                Message<byte[]> message = next(consumer);
                check(message.getRedeliveryCount() == count, "redelivery " + message.getRedeliveryCount());
                consumer.negativeAcknowledge(message);
            }
            consumer.acknowledge(next(consumer));
        }
    }

    private static void deadLetter(PulsarClient client) throws Exception {
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(1).deadLetterTopic("dead").build();
        try (Consumer<byte[]> dead = subscription(client, "dead", SubscriptionType.Exclusive).subscribe();
                Consumer<byte[]> consumer = subscription(client, "poisoned", SubscriptionType.Shared)
                        .negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).deadLetterPolicy(policy).subscribe();
                Producer<byte[]> producer = client.newProducer().topic("poisoned").create()) {
            send(producer, "poison");
            consumer.negativeAcknowledge(next(consumer));
            consumer.negativeAcknowledge(next(consumer));
            Message<byte[]> message = next(dead);
            check(text(message).equals("poison"), "another one died");
            check(message.getProperty("REAL_TOPIC").endsWith("/poisoned"), "no trace of where it came from");
        }
    }

    private static void retryTopic(PulsarClient client) throws Exception {
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(1).build();
        try (Consumer<byte[]> dead = subscription(client, "tried-s-DLQ", SubscriptionType.Exclusive).subscribe();
                Consumer<byte[]> consumer = subscription(client, "tried", SubscriptionType.Shared).enableRetry(true)
                        .deadLetterPolicy(policy).subscribe();
                Producer<byte[]> producer = client.newProducer().topic("tried").create()) {
            send(producer, "again");
            consumer.reconsumeLater(next(consumer), 50, TimeUnit.MILLISECONDS);
            Message<byte[]> message = next(consumer);
            check(message.getTopicName().endsWith("/tried-s-RETRY"), "it came from " + message.getTopicName());
            consumer.reconsumeLater(message, 50, TimeUnit.MILLISECONDS);
            check(text(next(dead)).equals("again"), "another one died");
        }
    }

    private static void seek(PulsarClient client) throws Exception {
        try (Consumer<byte[]> consumer = subscription(client, "sought", SubscriptionType.Exclusive).subscribe();
                Producer<byte[]> producer = client.newProducer().topic("sought").create()) {
            List<MessageId> ids = send(producer, "0", "1", "2", "3");
            for (int i = 0; i < 4; i++) {
                consumer.acknowledge(next(consumer));
            }
            consumer.seek(ids.get(2));
            check(text(next(consumer)).equals("3"), "not behind the id");
            consumer.seek(MessageId.earliest);
            check(text(next(consumer)).equals("0"), "not from the beginning");
            Thread.sleep(20);
            long between = System.currentTimeMillis();
            Thread.sleep(20);
            send(producer, "4");
            consumer.seek(between);
            check(text(next(consumer)).equals("4"), "not from the time");
        }
    }

    private static void reader(PulsarClient client) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic("read").create()) {
            List<MessageId> ids = send(producer, "0", "1", "2", "3", "4");
            try (Reader<byte[]> reader = client.newReader().topic("read").startMessageId(ids.get(1)).create()) {
                List<String> came = new ArrayList<>();
                while (reader.hasMessageAvailable()) {
                    came.add(text(reader.readNext()));
                }
                check(came.equals(List.of("2", "3", "4")), "read " + came);
                reader.seek(ids.get(0));
                check(text(reader.readNext(PATIENCE_S, TimeUnit.SECONDS)).equals("1"), "not behind the id");
            }
        }
    }

    private static void pattern(PulsarClient client) throws Exception {
        for (String topic : List.of("pattern-a", "pattern-b", "other")) {
            try (Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
                send(producer, topic);
            }
        }
        try (Consumer<byte[]> consumer = client.newConsumer().subscriptionName("s")
                .topicsPattern(Pattern.compile("persistent://public/default/pattern-.*"))
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            Set<String> came = new TreeSet<>(List.of(text(next(consumer)), text(next(consumer))));
            check(came.equals(Set.of("pattern-a", "pattern-b")), "came " + came);
        }
    }

    private static void schemas(PulsarClient client) throws Exception {
        through(client, "of-text", Schema.STRING, "välkommen");
        Map<String, Schema<Order>> kinds = new LinkedHashMap<>();
        kinds.put("of-json", Schema.JSON(Order.class));
        kinds.put("of-avro", Schema.AVRO(Order.class));
        for (Map.Entry<String, Schema<Order>> each : kinds.entrySet()) {
            Order order = through(client, each.getKey(), each.getValue(), new Order("tea", 3));
            check(order.item.equals("tea") && order.count == 3, "another order");
        }
        try (Consumer<?> consumer = client.newConsumer(Schema.AUTO_CONSUME()).topic("of-avro").subscriptionName("auto")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            Object found = next(consumer).getValue();
            Object item = ((org.apache.pulsar.client.api.schema.GenericRecord) found).getField("item");
            check(item.toString().equals("tea"), "another field");
        }
    }

    private static <T> T through(PulsarClient client, String topic, Schema<T> schema, T value) throws Exception {
        try (Producer<T> producer = client.newProducer(schema).topic(topic).create();
                Consumer<T> consumer = client.newConsumer(schema).topic(topic).subscriptionName("s")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            producer.send(value);
            Message<T> message = next(consumer);
            check(message.getSchemaVersion() != null, "no version");
            consumer.acknowledge(message);
            check(!(value instanceof String) || value.equals(message.getValue()), "another text");
            return message.getValue();
        }
    }

    private static void receiptsOfSingleMessages(PulsarClient client) throws Exception {
        ConsumerBuilder<byte[]> one = subscription(client, "single", SubscriptionType.Shared)
                .enableBatchIndexAcknowledgment(true).isAckReceiptEnabled(true);
        try (Producer<byte[]> producer = client.newProducer().topic("single")
                .batchingMaxPublishDelay(500, TimeUnit.MILLISECONDS).create()) {
            send(producer, "0", "1", "2", "3");
        }
        try (Consumer<byte[]> consumer = one.subscribe()) {
            for (int i = 0; i < 4; i++) {
                Message<byte[]> message = next(consumer);
                if (i % 2 == 0) {
                    consumer.acknowledgeAsync(message).get(PATIENCE_S, TimeUnit.SECONDS);
                }
            }
        }
        try (Consumer<byte[]> consumer = one.subscribe()) {
            List<String> came = List.of(text(next(consumer)), text(next(consumer)));
            check(came.equals(List.of("1", "3")), "came again: " + came);
        }
    }

    private static void activeConsumer(PulsarClient client) throws Exception {
        List<String> told = Collections.synchronizedList(new CopyOnWriteArrayList<>());
        ConsumerBuilder<byte[]> builder = subscription(client, "failover", SubscriptionType.Failover);
        Consumer<byte[]> first = builder.clone().consumerName("a").consumerEventListener(listener("a", told)).subscribe();
        until(told, 1);
        try (Consumer<byte[]> second =
                builder.clone().consumerName("b").consumerEventListener(listener("b", told)).subscribe()) {
            until(told, 2);
            first.close();
            until(told, 3);
        }
        check(told.equals(List.of("a active", "b inactive", "b active")), "told " + told);
    }

    private static void until(List<String> told, int count) throws Exception {
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (told.size() < count) {
            check(System.nanoTime() < until, "only told " + told);
            Thread.sleep(10);
        }
    }

    private static ConsumerEventListener listener(String name, List<String> told) {
        return new ConsumerEventListener() {
            @Override
            public void becameActive(Consumer<?> consumer, int partition) {
                told.add(name + " active");
            }

            @Override
            public void becameInactive(Consumer<?> consumer, int partition) {
                told.add(name + " inactive");
            }
        };
    }

    private static void tableView(PulsarClient client) throws Exception {
        String topic = "persistent://public/default/table"; // of a short name the client does not wait for what is there
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).create()) {
            for (String value : List.of("old", "new")) {
                producer.newMessage().key("k").value(value).send();
            }
            try (TableView<String> view = client.newTableView(Schema.STRING).topic(topic).create()) {
                check("new".equals(view.get("k")) && view.size() == 1, "the view has " + view.get("k"));
            }
        }
    }

    private static void morePartitions(PulsarClient client, String url) throws Exception {
        ask(url, "PUT", "grown/partitions", "2");
        try (Consumer<byte[]> consumer = subscription(client, "grown", SubscriptionType.Shared)
                        .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS)
                        .subscribe();
                Producer<byte[]> producer = client.newProducer()
                        .topic("grown")
                        .enableBatching(false)
                        .messageRoutingMode(MessageRoutingMode.RoundRobinPartition)
                        .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS)
                        .create()) {
            send(producer, "before", "before");
            ask(url, "POST", "grown/partitions", "4");
            Set<Integer> partitions = new TreeSet<>();
            int sent = 2;
            long deadline = System.currentTimeMillis() + PATIENCE_S * 1000L;
            while (partitions.size() < 4 && System.currentTimeMillis() < deadline) {
                MessageId id = producer.send("after".getBytes(StandardCharsets.UTF_8));
                partitions.add(((MessageIdAdv) id).getPartitionIndex());
                sent++;
            }
            check(partitions.size() == 4, "it sends to " + partitions);
            for (int came = 0; came < sent; came++) {
                consumer.acknowledge(next(consumer));
            }
        }
    }

    private static void terminated(PulsarClient client, String url) throws Exception {
        try (Consumer<byte[]> consumer = subscription(client, "last", SubscriptionType.Shared).subscribe();
                Producer<byte[]> producer = client.newProducer().topic("last").create();
                Reader<byte[]> reader =
                        client.newReader().topic("last").startMessageId(MessageId.earliest).create()) {
            send(producer, "0", "1", "2");
            ask(url, "POST", "last/terminate", "");
            refused(() -> producer.send("late".getBytes(StandardCharsets.UTF_8)));
            refused(() -> client.newProducer().topic("last").create());
            for (String wanted : List.of("0", "1", "2")) {
                check(!consumer.hasReachedEndOfTopic(), "the end was told before " + wanted);
                Message<byte[]> message = next(consumer);
                check(text(message).equals(wanted), "received " + text(message));
                consumer.acknowledge(message);
            }
            until(consumer::hasReachedEndOfTopic, "the consumer does not know the end");
            while (reader.hasMessageAvailable()) {
                reader.readNext();
            }
            until(reader::hasReachedEndOfTopic, "the reader does not know the end");
        }
    }

    interface Attempt {
        void make() throws Exception;
    }

    private static void refused(Attempt attempt) throws Exception {
        try {
            attempt.make();
        } catch (PulsarClientException.TopicTerminatedException right) {
            return;
        }
        check(false, "a terminated topic takes something");
    }

    private static void until(BooleanSupplier condition, String what) throws InterruptedException {
        long deadline = System.currentTimeMillis() + PATIENCE_S * 1000L;
        while (!condition.getAsBoolean() && System.currentTimeMillis() < deadline) {
            Thread.sleep(20);
        }
        check(condition.getAsBoolean(), what);
    }

    /** Asks the broker as Pulsar's tools do, at the port of its clients. */
    private static void ask(String url, String method, String path, String body) throws Exception {
        String http = url.replace("pulsar://", "http://") + "/admin/v2/persistent/public/default/" + path;
        HttpRequest request = HttpRequest.newBuilder(URI.create(http))
                .method(method, HttpRequest.BodyPublishers.ofString(body))
                .header("Content-Type", "application/json")
                .build();
        HttpResponse<String> answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        check(answer.statusCode() < 300, method + " " + path + ": " + answer.statusCode() + " " + answer.body());
    }

    private static void token(String url, String token) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url)
                        .authentication(AuthenticationFactory.token(token)).build();
                Producer<byte[]> producer = client.newProducer().topic("guarded").create()) {
            send(producer, "in");
        }
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).build()) {
            client.newProducer().topic("guarded").create();
            throw new AssertionError("a stranger was let in");
        } catch (PulsarClientException expected) {
            check(expected instanceof PulsarClientException.AuthenticationException, "refused with " + expected);
        }
    }

    private static void transactionsAreRefused(String url) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).enableTransaction(true).build()) {
            client.newTransaction().build().get(PATIENCE_S, TimeUnit.SECONDS);
        } catch (Exception expected) {
            return;
        }
        throw new AssertionError("a transaction was begun");
    }
}
