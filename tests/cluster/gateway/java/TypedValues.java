import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * Typed values of Pulsar's Java client, with those of another client. One line a step: its name, and what came of it.
 *
 * <pre>TypedValues URL     topics ours-json and ours-avro have one order; theirs-json and theirs-avro have none</pre>
 */
public final class TypedValues {
    public static class Order {
        public String article;
        public long count;
    }

    /** A later version: a field more. */
    public static class Larger {
        public String article;
        public long count;
        public String note;
    }

    /** A version without a field that has no default. */
    public static class Smaller {
        public String article;
    }

    private static final int PATIENCE_S = 60;

    public static void main(String[] args) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            play(client, "json", Schema.JSON(Order.class), Schema.JSON(Larger.class), Schema.JSON(Smaller.class));
            play(client, "avro", Schema.AVRO(Order.class), Schema.AVRO(Larger.class), Schema.AVRO(Smaller.class));
        }
        System.exit(0);
    }

    private static void play(PulsarClient client, String form, Schema<Order> order, Schema<Larger> larger,
            Schema<Smaller> smaller) throws Exception {
        try (Consumer<Order> consumer = client.newConsumer(order).topic("ours-" + form).subscriptionName("java")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            Message<Order> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
            say(form, "reads", message.getKey() + " " + message.getValue().article + " " + message.getValue().count);
        }
        try (Producer<Order> producer = client.newProducer(order).topic("theirs-" + form).create()) {
            Order value = new Order();
            value.article = "tea";
            value.count = 5;
            producer.newMessage().key("k").value(value).send();
            say(form, "writes", "ok");
        }
        for (String topic : new String[] {"ours-", "theirs-"}) {
            try (Producer<Smaller> producer = client.newProducer(smaller).topic(topic + form).create()) {
                say(form, topic + "removed", "taken");
            } catch (PulsarClientException.IncompatibleSchemaException refused) {
                say(form, topic + "removed", "refused");
            }
            try (Producer<Larger> producer = client.newProducer(larger).topic(topic + form).create()) {
                Larger value = new Larger();
                value.article = "ink";
                value.count = 2;
                value.note = "blue";
                producer.send(value);
                say(form, topic + "added", "ok");
            }
        }
    }

    private static void say(String form, String step, String outcome) {
        System.out.println(form + " " + step + ": " + outcome);
    }
}
