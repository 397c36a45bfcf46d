// The Go SDK golang/v5 of rocketmq-clients, controlled over stdin and stdout by interop/sdks.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type outgoing struct {
	Body       []byte            `json:"body"`
	Tag        string            `json:"tag"`
	Keys       []string          `json:"keys"`
	Properties map[string]string `json:"properties"`
	Group      string            `json:"group"`
	LiteTopic  string            `json:"lite_topic"`
	DelayMs    int64             `json:"delay_ms"`
	Priority   *int32            `json:"priority"`
	Resolution string            `json:"resolution"`
}

type request struct {
	Do        string     `json:"do"`
	Endpoint  string     `json:"endpoint"`
	Topic     string     `json:"topic"`
	Group     string     `json:"group"`
	How       string     `json:"how"`
	Recall    bool       `json:"recall"`
	Checks    []string   `json:"checks"`
	HoldMs    int64      `json:"hold_ms"`
	PauseMs   int64      `json:"pause_ms"`
	UntilSent bool       `json:"until_sent"`
	Messages  []outgoing `json:"messages"`
	Filter    string     `json:"filter"`
	IsSql     bool       `json:"is_sql"`
	AwaitMs   int64      `json:"await_ms"`
	Fail      int32      `json:"fail"`
	WorkMs    int64      `json:"work_ms"`
	Lite      []string   `json:"lite_topics"`
}

type line map[string]any

var (
	lock sync.Mutex
	out  = json.NewEncoder(os.Stdout)
	in   = bufio.NewReaderSize(os.Stdin, 1<<20)
)

func main() {
	os.Setenv("rocketmq.client.logRoot", os.Getenv("HOME"))
	rmq.ResetLogger()
	text, err := in.ReadBytes('\n')
	if err == nil {
		var wanted request
		if err = json.Unmarshal(text, &wanted); err == nil {
			err = run(wanted)
		}
	}
	if err != nil {
		tellError(err)
	}
	tell(line{"end": true})
}

func run(wanted request) error {
	switch wanted.Do {
	case "send":
		return send(wanted)
	case "simple":
		return simple(wanted)
	case "push":
		return push(wanted)
	case "lite":
		return lite(wanted)
	}
	return fmt.Errorf("no command %q", wanted.Do)
}

func tell(value line) {
	lock.Lock()
	defer lock.Unlock()
	if err := out.Encode(value); err != nil {
		panic(err)
	}
}

func tellError(err error) {
	var status *rmq.ErrRpcStatus
	if errors.As(err, &status) {
		tell(line{"error": "ErrRpcStatus", "code": status.Code, "text": err.Error()})
		return
	}
	kind := strings.TrimPrefix(reflect.TypeOf(err).String(), "*")
	tell(line{"error": kind, "code": nil, "text": err.Error()})
}

func configuration(wanted request) *rmq.Config {
	return &rmq.Config{
		Endpoint:      wanted.Endpoint,
		ConsumerGroup: wanted.Group,
		Credentials:   &credentials.SessionCredentials{},
	}
}

func subscription(wanted request) map[string]*rmq.FilterExpression {
	kind := rmq.TAG
	if wanted.IsSql {
		kind = rmq.SQL92
	}
	return map[string]*rmq.FilterExpression{
		wanted.Topic: rmq.NewFilterExpressionWithType(wanted.Filter, kind),
	}
}

func untilEnd() {
	for {
		if _, err := in.ReadByte(); err != nil {
			return
		}
	}
}

func pause(ms int64) { time.Sleep(time.Duration(ms) * time.Millisecond) }

func text(value *string) string {
	if value == nil {
		return ""
	}
	return *value
}

func received(message *rmq.MessageView) line {
	keys := message.GetKeys()
	if keys == nil {
		keys = []string{}
	}
	properties := message.GetProperties()
	if properties == nil {
		properties = map[string]string{}
	}
	return line{
		"message_id": message.GetMessageId(),
		"body":       message.GetBody(),
		"tag":        text(message.GetTag()),
		"keys":       keys,
		"properties": properties,
		"group":      text(message.GetMessageGroup()),
		"lite_topic": message.GetLiteTopic(),
		"attempt":    message.GetDeliveryAttempt(),
		"at_ms":      time.Now().UnixMilli(),
	}
}

func checker(answers []string) *rmq.TransactionChecker {
	var guard sync.Mutex
	left := map[string][]string{}
	return &rmq.TransactionChecker{Check: func(message *rmq.MessageView) rmq.TransactionResolution {
		guard.Lock()
		defer guard.Unlock()
		id := message.GetMessageId()
		if _, known := left[id]; !known {
			left[id] = answers
		}
		answer := "commit"
		if len(left[id]) > 0 {
			answer, left[id] = left[id][0], left[id][1:]
		}
		told := received(message)
		told["checked"] = answer
		tell(told)
		return map[string]rmq.TransactionResolution{
			"commit": rmq.COMMIT, "rollback": rmq.ROLLBACK, "unknown": rmq.UNKNOWN,
		}[answer]
	}}
}

func messageOf(topic string, one outgoing) (*rmq.Message, error) {
	message := &rmq.Message{Topic: topic, Body: one.Body}
	if one.Tag != "" {
		message.SetTag(one.Tag)
	}
	if len(one.Keys) > 0 {
		message.SetKeys(one.Keys...)
	}
	for key, value := range one.Properties {
		message.AddProperty(key, value)
	}
	if one.Group != "" {
		message.SetMessageGroup(one.Group)
	}
	if one.LiteTopic != "" {
		message.SetLiteTopic(one.LiteTopic)
	}
	if one.DelayMs != 0 {
		message.SetDelayTimestamp(time.Now().Add(time.Duration(one.DelayMs) * time.Millisecond))
	}
	if one.Priority != nil {
		if err := message.SetPriority(*one.Priority); err != nil {
			return nil, err
		}
	}
	return message, nil
}

func send(wanted request) error {
	producer, err := rmq.NewProducer(configuration(wanted),
		rmq.WithTopics(wanted.Topic), rmq.WithTransactionChecker(checker(wanted.Checks)))
	if err != nil {
		return err
	}
	if err = producer.Start(); err != nil {
		return err
	}
	defer producer.GracefulStop()
	var waiting sync.WaitGroup
	for _, one := range wanted.Messages {
		message, err := messageOf(wanted.Topic, one)
		if err == nil && wanted.How == "async" {
			waiting.Add(1)
			producer.SendAsync(context.Background(), message,
				func(_ context.Context, receipts []*rmq.SendReceipt, err error) {
					defer waiting.Done()
					if err != nil {
						tellError(err)
						return
					}
					tellSent(receipts[0])
				})
			continue
		}
		if err == nil {
			err = sendOne(producer, wanted, one, message)
		}
		if err != nil {
			tellError(err)
		}
		pause(wanted.PauseMs)
	}
	waiting.Wait()
	if len(wanted.Checks) > 0 {
		untilEnd()
	}
	return nil
}

func sendOne(producer rmq.Producer, wanted request, one outgoing, message *rmq.Message) error {
	ctx := context.Background()
	if wanted.How == "transaction" {
		transaction := producer.BeginTransaction()
		receipts, err := producer.SendWithTransaction(ctx, message, transaction)
		if err != nil {
			return err
		}
		tellSent(receipts[0])
		pause(wanted.HoldMs)
		switch one.Resolution {
		case "commit":
			return transaction.Commit()
		case "rollback":
			return transaction.RollBack()
		}
		return nil
	}
	receipts, err := producer.Send(ctx, message)
	for wanted.UntilSent && err != nil {
		fmt.Fprintln(os.Stderr, err)
		pause(100)
		receipts, err = producer.Send(ctx, message)
	}
	if err != nil {
		return err
	}
	tellSent(receipts[0])
	if wanted.Recall {
		id, err := producer.Recall(ctx, wanted.Topic, receipts[0].RecallHandle)
		if err != nil {
			return err
		}
		tell(line{"recalled": id})
	}
	return nil
}

func tellSent(receipt *rmq.SendReceipt) {
	tell(line{
		"message_id":     receipt.MessageID,
		"queue_offset":   receipt.Offset,
		"recall_handle":  receipt.RecallHandle,
		"transaction_id": receipt.TransactionId,
	})
}

func simple(wanted request) error {
	consumer, err := rmq.NewSimpleConsumer(configuration(wanted),
		rmq.WithSimpleAwaitDuration(time.Duration(wanted.AwaitMs)*time.Millisecond),
		rmq.WithSimpleSubscriptionExpressions(subscription(wanted)))
	if err != nil {
		return err
	}
	if err = consumer.Start(); err != nil {
		return err
	}
	defer consumer.GracefulStop()
	tell(line{"started": true})
	var messages []*rmq.MessageView
	for {
		text, err := in.ReadBytes('\n')
		if err != nil {
			return nil
		}
		var step []any
		if err := json.Unmarshal(text, &step); err != nil {
			return err
		}
		number := func(index int) int { return int(step[index].(float64)) }
		ctx := context.Background()
		switch step[0] {
		case "receive":
			var found []*rmq.MessageView
			invisible := time.Duration(number(2)) * time.Millisecond
			found, err = consumer.Receive(ctx, int32(number(1)), invisible)
			for _, message := range found {
				messages = append(messages, message)
				tell(received(message))
			}
		case "ack":
			err = consumer.Ack(ctx, messages[number(1)])
		case "change":
			invisible := time.Duration(number(2)) * time.Millisecond
			err = consumer.ChangeInvisibleDuration(messages[number(1)], invisible)
		case "copy":
			again := *messages[number(1)]
			messages = append(messages, &again)
		}
		if err != nil {
			tellError(err)
		} else {
			tell(line{"done": step[0]})
		}
	}
}

func listener(wanted request) rmq.PushConsumerOption {
	return rmq.WithPushMessageListener(&rmq.FuncMessageListener{
		Consume: func(message *rmq.MessageView) rmq.ConsumerResult {
			tell(received(message))
			pause(wanted.WorkMs)
			if message.GetDeliveryAttempt() <= wanted.Fail {
				return rmq.FAILURE
			}
			return rmq.SUCCESS
		},
	})
}

func lite(wanted request) error {
	consumer, err := rmq.NewLitePushConsumer(configuration(wanted),
		rmq.NewLitePushConsumerConfig(wanted.Topic, 30*time.Second),
		rmq.WithPushAwaitDuration(time.Duration(wanted.AwaitMs)*time.Millisecond),
		listener(wanted))
	if err != nil {
		return err
	}
	if err = consumer.Start(); err != nil {
		return err
	}
	defer consumer.GracefulStop()
	for _, name := range wanted.Lite {
		if err = consumer.SubscribeLite(name); err != nil {
			return err
		}
	}
	tell(line{"started": true})
	untilEnd()
	return nil
}

func push(wanted request) error {
	consumer, err := rmq.NewPushConsumer(configuration(wanted),
		rmq.WithPushAwaitDuration(time.Duration(wanted.AwaitMs)*time.Millisecond),
		rmq.WithPushSubscriptionExpressions(subscription(wanted)),
		listener(wanted))
	if err != nil {
		return err
	}
	if err = consumer.Start(); err != nil {
		return err
	}
	defer consumer.GracefulStop()
	tell(line{"started": true})
	untilEnd()
	return nil
}
