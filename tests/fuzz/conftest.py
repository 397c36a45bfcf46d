from world import subject as subject  # a fixture
