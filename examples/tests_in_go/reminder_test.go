// A reminder that is due in an hour. Run it with: reput up --test-controls 0 -- go test
package orders

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func TestAReminderComesAfterAnHour(t *testing.T) {
	servers := []string{os.Getenv("NAMESRV_ADDR")}
	control(t, "create-topic", `{"topic": "RemindersOfGo"}`)
	reminders := make(chan string, 1)

	sender, err := rocketmq.NewProducer(
		producer.WithNameServer(servers), producer.WithGroupName("reminders-of-go"))
	check(t, err)
	check(t, sender.Start())
	defer sender.Shutdown()
	reader, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(servers), consumer.WithGroupName("readers-of-go"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(t, err)
	check(t, reader.Subscribe("RemindersOfGo", consumer.MessageSelector{},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				reminders <- string(message.Body)
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(t, reader.Start())
	defer reader.Shutdown()

	reminder := primitive.NewMessage("RemindersOfGo", []byte("pay the invoice"))
	reminder.WithDelayTimeLevel(17) // an hour
	_, err = sender.SendSync(context.Background(), reminder)
	check(t, err)
	select {
	case body := <-reminders:
		t.Fatalf("%q came at once", body)
	case <-time.After(500 * time.Millisecond):
	}
	control(t, "advance", `{"ms": 3600000}`)
	select {
	case body := <-reminders:
		if body != "pay the invoice" {
			t.Fatalf("%q came", body)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("no reminder came")
	}
}

func control(t *testing.T, call string, arguments string) {
	t.Helper()
	answer, err := http.Post(
		os.Getenv("REPUT_TEST_CONTROLS")+call, "application/json", strings.NewReader(arguments))
	check(t, err)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		t.Fatalf("%s: %s", call, text)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
