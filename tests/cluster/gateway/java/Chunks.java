import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Messages in chunks, with Pulsar's Java client. One line a step: its name, and what came of it.
 *
 * <pre>Chunks URL     topic `ours` has a large message and a small one; what came large goes to `theirs-CODEC`</pre>
 */
public final class Chunks {
    private static final int PATIENCE_S = 60;

    public static void main(String[] args) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            byte[] large = receive(client);
            read(client);
            for (CompressionType codec : CompressionType.values()) {
                try (Producer<byte[]> producer = client.newProducer().topic("theirs-" + codec).enableChunking(true)
                        .enableBatching(false).compressionType(codec).create()) {
                    MessageId whole = producer.newMessage().key("k").property("by", "java").value(large).send();
                    producer.newMessage().key("k").value("small".getBytes()).send();
                    say("writes-" + codec, producer.getLastSequenceId() == 1 && whole != null ? "ok" : "?");
                }
            }
        }
        System.exit(0);
    }

    /**
     * Receive, give back once, acknowledge. `negativeAcknowledge` of this version gives the last chunk back alone, and
     * the message comes no more.
     */
    private static byte[] receive(PulsarClient client) throws Exception {
        try (Consumer<byte[]> consumer = client.newConsumer().topic("ours").subscriptionName("java")
                .subscriptionType(SubscriptionType.Key_Shared).isAckReceiptEnabled(true)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            Message<byte[]> message = next(consumer);
            say("receives", describe(message));
            say("then", new String(next(consumer).getData()));
            consumer.redeliverUnacknowledgedMessages();
            Message<byte[]> again = next(consumer);
            say("again", describe(again));
            consumer.acknowledge(again);
            return again.getData();
        }
    }

    private static void read(PulsarClient client) throws Exception {
        try (Reader<byte[]> reader = client.newReader().topic("ours").startMessageId(MessageId.earliest).create()) {
            Message<byte[]> message = reader.readNext(PATIENCE_S, TimeUnit.SECONDS);
            say("reads", describe(message));
            reader.readNext(PATIENCE_S, TimeUnit.SECONDS);
            reader.seek(message.getMessageId());
            say("seeks", new String(reader.readNext(PATIENCE_S, TimeUnit.SECONDS).getData()));
        }
    }

    private static Message<byte[]> next(Consumer<byte[]> consumer) throws Exception {
        Message<byte[]> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
        if (message == null) {
            throw new AssertionError("nothing came");
        }
        return message;
    }

    private static String describe(Message<byte[]> message) throws Exception {
        byte[] sum = MessageDigest.getInstance("SHA-256").digest(message.getData());
        return message.getKey() + " " + message.getProperty("by") + " " + HexFormat.of().formatHex(sum);
    }

    private static void say(String step, String outcome) {
        System.out.println(step + ": " + outcome);
    }
}
