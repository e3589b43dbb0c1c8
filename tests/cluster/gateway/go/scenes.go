// Scenes with Pulsar's Go client. Argument: the service URL. Prints a line for each scene: its name, and ok or what was
// wrong.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const patience = 60 * time.Second

type scene struct {
	name string
	play func(pulsar.Client) error
}

var scenes = []scene{
	{"produce_and_consume", produceAndConsume},
	{"key_shared", keyShared},
	{"given_back", givenBack},
	{"reader", reader},
}

func main() {
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:              os.Args[1],
		OperationTimeout: patience,
		Logger:           log.NewLoggerWithSlog(quiet),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer client.Close()
	for _, one := range scenes {
		said := "ok"
		if err := one.play(client); err != nil {
			said = err.Error()
		}
		fmt.Println(one.name, said)
	}
}

func produceAndConsume(client pulsar.Client) error {
	consumer, err := client.Subscribe(subscribed("go-plain", pulsar.Exclusive))
	if err != nil {
		return err
	}
	defer consumer.Close()
	if err := send(client, "go-plain", pulsar.DefaultBatchBuilder, 200, func(number int) *pulsar.ProducerMessage {
		return &pulsar.ProducerMessage{
			Payload:    []byte(fmt.Sprint(number)),
			Key:        fmt.Sprint("key-", number%7),
			Properties: map[string]string{"number": fmt.Sprint(number)},
			EventTime:  time.UnixMilli(int64(1_700_000_000_000 + number)),
		}
	}); err != nil {
		return err
	}
	for number := 0; number < 200; number++ {
		message, err := receive(consumer)
		if err != nil {
			return err
		}
		at := time.UnixMilli(int64(1_700_000_000_000 + number))
		want := fmt.Sprint(number)
		if string(message.Payload()) != want || message.Properties()["number"] != want || !message.EventTime().Equal(at) {
			return fmt.Errorf("message %d is %q, %v, %v", number, message.Payload(), message.Properties(), message.EventTime())
		}
		if err := consumer.Ack(message); err != nil {
			return err
		}
	}
	return nil
}

// keyShared has two consumers: each key is at one of them, in order, and all messages come.
func keyShared(client pulsar.Client) error {
	const messages, keys = 1000, 20
	var consumers []pulsar.Consumer
	for range 2 {
		consumer, err := client.Subscribe(subscribed("go-keys", pulsar.KeyShared))
		if err != nil {
			return err
		}
		defer consumer.Close()
		consumers = append(consumers, consumer)
	}
	if err := send(client, "go-keys", pulsar.KeyBasedBatchBuilder, messages, func(number int) *pulsar.ProducerMessage {
		return &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(number)), Key: fmt.Sprint("key-", number%keys)}
	}); err != nil {
		return err
	}
	type seen struct {
		by, last int
	}
	var (
		lock  sync.Mutex
		group sync.WaitGroup
		found = map[string]seen{}
		all   = map[int]bool{}
		wrong error
	)
	until, done := context.WithTimeout(context.Background(), patience)
	defer done()
	for me, consumer := range consumers {
		group.Add(1)
		go func() {
			defer group.Done()
			for {
				message, err := consumer.Receive(until)
				if err != nil {
					return
				}
				err = consumer.Ack(message)
				lock.Lock()
				var number int
				if _, scanned := fmt.Sscan(string(message.Payload()), &number); scanned != nil {
					err = errors.Join(err, scanned)
				}
				before, known := found[message.Key()]
				if known && (before.by != me || before.last >= number) {
					err = errors.Join(err, fmt.Errorf("%s: %d at %d after %d at %d", message.Key(), number, me, before.last, before.by))
				}
				found[message.Key()] = seen{me, number}
				all[number] = true
				wrong = errors.Join(wrong, err)
				if len(all) == messages {
					done()
				}
				lock.Unlock()
			}
		}()
	}
	group.Wait()
	if len(all) < messages {
		return errors.Join(wrong, fmt.Errorf("%d of %d messages came", len(all), messages))
	}
	return wrong
}

func givenBack(client pulsar.Client) error {
	options := subscribed("go-back", pulsar.Shared)
	options.NackRedeliveryDelay = 10 * time.Millisecond
	consumer, err := client.Subscribe(options)
	if err != nil {
		return err
	}
	defer consumer.Close()
	if err := send(client, "go-back", pulsar.DefaultBatchBuilder, 1, func(int) *pulsar.ProducerMessage {
		return &pulsar.ProducerMessage{Payload: []byte("once more")}
	}); err != nil {
		return err
	}
	for again := range uint32(3) {
		message, err := receive(consumer)
		if err != nil {
			return err
		}
		if message.RedeliveryCount() != again {
			return fmt.Errorf("redelivery count %d, not %d", message.RedeliveryCount(), again)
		}
		if again < 2 {
			consumer.Nack(message)
		} else if err := consumer.Ack(message); err != nil {
			return err
		}
	}
	return nil
}

func reader(client pulsar.Client) error {
	if err := send(client, "go-read", pulsar.DefaultBatchBuilder, 10, func(number int) *pulsar.ProducerMessage {
		return &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(number))}
	}); err != nil {
		return err
	}
	one, err := client.CreateReader(pulsar.ReaderOptions{Topic: "go-read", StartMessageID: pulsar.EarliestMessageID()})
	if err != nil {
		return err
	}
	defer one.Close()
	count := 0
	for one.HasNext() {
		until, done := context.WithTimeout(context.Background(), patience)
		message, err := one.Next(until)
		done()
		if err != nil {
			return err
		}
		if string(message.Payload()) != fmt.Sprint(count) {
			return fmt.Errorf("message %d is %q", count, message.Payload())
		}
		count++
	}
	if count != 10 {
		return fmt.Errorf("%d of 10 messages were read", count)
	}
	return nil
}

func subscribed(topic string, kind pulsar.SubscriptionType) pulsar.ConsumerOptions {
	return pulsar.ConsumerOptions{
		Topic:                       topic,
		SubscriptionName:            "go",
		Type:                        kind,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	}
}

// send has so many messages stored, in batches.
func send(client pulsar.Client, topic string, by pulsar.BatcherBuilderType, count int, message func(int) *pulsar.ProducerMessage) error {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic:              topic,
		BatcherBuilderType: by,
	})
	if err != nil {
		return err
	}
	defer producer.Close()
	failed := make(chan error, count)
	for number := range count {
		producer.SendAsync(context.Background(), message(number), func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			failed <- err
		})
	}
	if err := producer.Flush(); err != nil {
		return err
	}
	for range count {
		err = errors.Join(err, <-failed)
	}
	return err
}

func receive(consumer pulsar.Consumer) (pulsar.Message, error) {
	until, done := context.WithTimeout(context.Background(), patience)
	defer done()
	return consumer.Receive(until)
}
