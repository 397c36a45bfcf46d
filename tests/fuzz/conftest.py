from broker_subject import subject as subject  # a fixture
